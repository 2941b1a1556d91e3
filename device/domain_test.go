package device_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// everybody has every rank meet every other in each way that the headers have, and counts what is
// not as it should be.
const everybody = `#include "channel.cuh"
#include "marks.cuh"
#include "opening.cuh"
using namespace weft;

struct Arguments {
	State *state;
	u32 *wrong, *scratch; // scratch: [2] turns x 4 words, which peers get
	u64 openings, signals, marks, packets, rows, pages; // offsets in the window
	Group group;
};

enum { MEET = 1, CALL = 5 };

extern "C" __global__ void everybody(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, MEET)) return;
	const Group &g = a.group;
	Wait w(g, a.state, MEET, o.epoch);
	Windows windows(g);
	u32 lane = threadIdx.x & 31, turn = o.epoch & 1, n = 1000 * (u32)o.epoch;
	RankSet others = all_ranks(g) & ~o.mask & ~RankSet::one(g.rank);

	// openings: by the threads of the block, and heard by its first warp
	for (u32 r = threadIdx.x; r < g.ranks; r += blockDim.x)
		announce(g, o.mask, a.openings, o.turn, r, CALL, n + g.rank, r);
	if (threadIdx.x < 32)
		await_peers(w, o.own, o.mask, a.openings, o.turn, CALL, [&](u32 src, uint4 v) {
			bool out = holds(o.mask, src);
			if (v.x != (out ? 0 : n + src) || v.y != (out ? 0 : g.rank)) atomicAdd(a.wrong, 1);
		});
	if (__syncthreads_or(w.over) != 0) return;

	// Each rank of a set is visited once, from the one after this one.
	u32 visited = 0, last = 0;
	for (Round to(others, g.rank, g.ranks); to.more(); visited++) {
		u32 r = to.next(), distance = r > g.rank ? r - g.rank : r + g.ranks - g.rank;
		if (!holds(others, r) || distance <= last || windows.of(r) != g.window[r]) atomicAdd(a.wrong, 1);
		last = distance;
		if (windows.each((r + lane) % g.ranks) != g.window[(r + lane) % g.ranks]) atomicAdd(a.wrong, 1);
	}
	if (visited != others.count() || others.before(g.ranks - 1) + holds(others, g.ranks - 1) != visited)
		atomicAdd(a.wrong, 1);
	RankSet all = union_of(RankSet::one(lane, lane < g.ranks) | RankSet::one(32 + lane, 32 + lane < g.ranks) |
						   RankSet::one((64 + lane) % MAX_RANKS, 64 + lane < g.ranks));
	if (nonempty(all & ~all_ranks(g)) || all.count() != g.ranks) atomicAdd(a.wrong, 1);

	// packets, puts with signals, and what is got from a peer's page
	char *page = o.own + a.pages + turn * 16;
	if (threadIdx.x == 0) *(uint4 *)page = make_uint4(n + g.rank, 1, 2, 3);
	__syncthreads();
	for (Round to(others, g.rank, g.ranks); to.more();) {
		Channel c(g, to.next());
		c.put_packets(a.packets + (turn * MAX_RANKS + g.rank) * 2 * PACKET_BYTES, page, 8, o.epoch, Threads::of_block());
		c.put(a.rows + (turn * MAX_RANKS + g.rank) * 16, page, 16, Threads::of_block());
		c.signal(a.signals + g.rank * 4, o.epoch);
	}
	for (Round from(others, g.rank, g.ranks); from.more();) {
		Channel c(g, from.next());
		u32 *got = a.scratch + threadIdx.x * 4;
		if (threadIdx.x == 0) {
			bool here = c.get_packets(w, got, a.packets + (turn * MAX_RANKS + c.peer) * 2 * PACKET_BYTES, 8, o.epoch, {0, 1});
			if (here && (got[0] != n + c.peer || got[1] != 1)) atomicAdd(a.wrong, 1);
		}
		if (!c.wait(w, a.signals + c.peer * 4, o.epoch)) return;
		const u32 *row = (const u32 *)(o.own + a.rows + (turn * MAX_RANKS + c.peer) * 16);
		c.get(got, a.pages + turn * 16, 16, {0, 1});
		if (row[0] != n + c.peer || row[3] != 3 || got[0] != n + c.peer || got[2] != 2) atomicAdd(a.wrong, 1);
	}

	mark(g, o, a.marks);
	if (!await_marks(g, o, w, a.marks)) return;
	o.end(a.state);
}`

type meeting struct {
	State, Wrong, Scratch                          cuda.Pointer
	Openings, Signals, Marks, Packets, Rows, Pages int64
	Group                                          device.Group
}

// TestDomains: kernels of domains of 32 ranks, which a warp has one a lane, and 64, and of a larger one,
// whose sets of ranks have two words, meet all their peers but one that is left out.
func TestDomains(t *testing.T) {
	emulate.Need(t)
	t.Run("32", func(t *testing.T) { meet(t, 3, device.LaneRanks) })
	t.Run("32 of 32", func(t *testing.T) {
		if !emulate.Everything() {
			t.Skip("not everything is emulated: make test-all")
		}
		meet(t, device.LaneRanks, device.LaneRanks)
	})
	t.Run("64", func(t *testing.T) { meet(t, 3, device.Domain(3)) })
	t.Run("72", func(t *testing.T) {
		if !emulate.Everything() {
			t.Skip("not everything is emulated: make test-all")
		}
		meet(t, 72, device.Domain(72))
	})
}

func meet(t *testing.T, ranks, domain int) {
	const times, threads, masked = 4, 64, 1
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%+v", err)
		}
	}
	machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{Tear: true, Seed: 1, Limit: 5 * time.Minute})
	t.Cleanup(func() { ok(machine.Check()) })
	driver, err := machine.Open()
	ok(err)
	contexts := primaries(t, driver)
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	cubin, err := cache.Load(t.Context(), kernel.Spec{
		Name: "everybody", Source: everybody, Headers: device.Headers(), Arch: "sm_90a",
		Defines: map[string]string{device.DomainDefine: fmt.Sprint(domain)},
	})
	ok(err)
	var functions [2]*cuda.Function
	for i, c := range contexts {
		m, err := c.LoadModule(cubin.Image())
		ok(err)
		t.Cleanup(func() { ok(m.Close()) })
		functions[i], err = m.Function("everybody")
		ok(err)
	}

	// A rank's memory: what is filled with ones, what begins as zeros, and what no peer reaches.
	d := int64(domain)
	var at meeting
	at.Signals = 3 * d * device.OpeningBytes
	at.Marks = at.Signals + 4*d
	at.Packets = at.Marks + 4*d
	at.Rows = at.Packets + 2*d*2*device.PacketBytes
	at.Pages = at.Rows + 2*d*16
	state := at.Pages + 32
	wrong := state + device.StateBytes + device.CountBytes
	waits := wrong + 16
	record := waits + 8*d
	scratch := record + device.RecordBytes + 64
	size := scratch + 16*threads
	begin := make([]byte, size)
	for i := range at.Signals {
		begin[i] = 0xFF
	}
	binary.LittleEndian.PutUint64(begin[state:], 1<<masked)
	binary.LittleEndian.PutUint64(begin[state+16:], uint64(2*time.Minute))
	var memory []*cuda.Memory
	for r := range ranks {
		m, err := contexts[r%2].Alloc(int(size))
		ok(err)
		t.Cleanup(func() { ok(m.Close()) })
		ok(contexts[r%2].Upload(m.Pointer(), begin))
		memory = append(memory, m)
	}
	var all sync.WaitGroup
	errs := make([]error, ranks)
	for r := range ranks {
		if r == masked {
			continue
		}
		a, p := at, memory[r].Pointer()
		a.State, a.Wrong, a.Scratch = p.Add(int(state)), p.Add(int(wrong)), p.Add(int(scratch))
		a.Group.Abort, a.Group.Record = uint64(p.Add(int(wrong+8))), uint64(p.Add(int(record)))
		a.Group.Claim, a.Group.Waits = uint64(p.Add(int(record+device.RecordBytes))), uint64(p.Add(int(waits)))
		a.Group.Ranks, a.Group.Rank = uint32(ranks), uint32(r)
		for k, m := range memory {
			a.Group.Window[k] = uint64(m.Pointer())
		}
		stream, err := contexts[r%2].NewStream(cuda.StreamOptions{})
		ok(err)
		t.Cleanup(func() { ok(stream.Close()) })
		l, err := functions[r%2].Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 1}, Block: cuda.Dim{X: threads}}, a)
		ok(err)
		all.Go(func() {
			for range times {
				errs[r] = errors.Join(errs[r], l.Start(stream))
			}
			errs[r] = errors.Join(errs[r], stream.Wait(t.Context()))
		})
	}
	all.Wait()
	ok(errors.Join(errs...))
	for r, m := range memory {
		b := make([]byte, size)
		ok(contexts[r%2].Download(b, m.Pointer()))
		epoch := binary.LittleEndian.Uint64(b[state+device.StateBytes:])
		if n := binary.LittleEndian.Uint32(b[wrong:]); r != masked && (n != 0 || epoch != times) {
			t.Errorf("rank %d: %d wrong in %d of %d operations; record %v", r, n, epoch, times, b[record:][:64])
		}
	}
}

package softnic_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/cudatest/layout"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/softnic"
)

var (
	soakOps  = flag.Int("soak.ops", 10_000, "entries of TestSoak, each one checked")
	soakSeed = flag.Uint64("soak.seed", 1, "seed of TestSoak")
)

// source has the kernels of the tests.
const source = `#include "nic.cuh"
using namespace weft;

struct Arguments {
	State *state;
	char *near, *far; // both ends of every write, as the GPU sees them
	u64 *result;
	u64 rounds, mode, at;
	NicPeer peer;
	Group group;
};

enum { WORK = 1 };

// post posts an entry of each kind, and rings once.
extern "C" __global__ void post(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, WORK)) return;
	Wait w(a.group, a.state, WORK, o.epoch);
	if (threadIdx.x == 0) {
		const NicQueue &q = a.peer.of(0);
		const NicMemory &dst = a.peer.dst, &src = a.peer.src;
		u64 entry;
		q.put(w, dst, 0x100, src, 0x40, 7168, NIC_DEFER);
		q.put8(w, dst, 0x100, 0x1122334455667788, NIC_DEFER);
		q.put4(w, dst, 0x104, 0x55667788, NIC_DEFER);
		q.add8(w, dst, 0x108, 0x0102030405060708, NIC_DEFER);
		q.add4(w, dst, 0x10c, 0xfffffffe, NIC_DEFER);
		q.put(w, dst, 0, src, 0, 0, NIC_DEFER); // which is no entry
		q.nop(w, entry, NIC_DEFER);
		q.ring();
	}
	o.end(a.state);
}

__device__ u32 pattern(u64 tag, u32 i) { return (u32)(tag * 0x9E3779B97F4A7C15ull >> 32) + i * 0x85EBCA6Bu; }

// work has threads that share queue pairs. A round of a thread is a write of 64 bytes, words of 4 and 8 bytes, and
// adds of both widths, under one ring. The last word is the flag of all: when the thread sees it, the rest is there.
extern "C" __global__ void work(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, WORK)) return;
	Wait w(a.group, a.state, WORK, o.epoch);
	u64 threads = gridDim.x * blockDim.x, me = blockIdx.x * blockDim.x + threadIdx.x, counts = a.at;
	const NicQueue &q = a.peer.of((u32)me);
	const NicMemory &dst = a.peer.dst, &src = a.peer.src;
	u64 mine = 128 * me, wrong = 0, right = 0;
	for (u64 round = 0; round < a.rounds; round++) {
		u64 tag = round * threads + me + 1;
		for (u32 i = 0; i < 16; i++) store_relaxed_sys4(a.near + mine + 4 * i, pattern(tag, i));
		bool on = q.put(w, dst, mine, src, mine, 64, NIC_DEFER) && q.put4(w, dst, mine + 72, (u32)tag, NIC_DEFER) &&
			q.add8(w, dst, counts, tag, NIC_DEFER) && q.add4(w, dst, counts + 8, 3, NIC_DEFER) &&
			q.put8(w, dst, mine + 64, tag);
		if (on && a.mode == 0 && (round & 3) == 3) on = q.flush(w);
		while (on && load_acquire_sys_u64(a.far + mine + 64) != tag) on = w.more(1, tag, 0);
		if (!on) break;
		for (u32 i = 0; i < 16; i++) wrong += load_relaxed_sys4(a.far + mine + 4 * i) != pattern(tag, i);
		wrong += load_relaxed_sys4(a.far + mine + 72) != (u32)tag;
		right += wrong == 0;
	}
	a.result[me] = right;
	if (me == 0) a.peer.flush(w);
	o.end(a.state);
}

// one makes one call.
extern "C" __global__ void one(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, WORK)) return;
	Wait w(a.group, a.state, WORK, o.epoch);
	if (threadIdx.x == 0) {
		const NicQueue &q = a.peer.of(0);
		const NicMemory &dst = a.peer.dst, &src = a.peer.src;
		bool done = true;
		switch (a.mode) {
		case 0: done = q.put(w, dst, a.at, src, 0, 8); break;
		case 1: done = q.put(w, dst, 0, src, a.at, 8); break;
		case 2: done = q.put(w, dst, 8, src, 0, ~0ull); break;
		case 3: done = q.put4(w, dst, a.at, 1); break;
		case 4: done = q.put8(w, dst, a.at, 1); break;
		case 5: done = q.add4(w, dst, a.at, 1); break;
		case 6: done = q.add8(w, dst, a.at, 1); break;
		case 7: done = q.add8(w, src, a.at, 1); break;
		case 8: done = q.flush(w); break;
		case 9: done = a.peer.flush(w); break;
		case 10: // fills the queue
			for (u64 i = 0; i <= q.mask && done; i++) done = q.put4(w, dst, 4 * i, (u32)i + 1);
			a.result[1] = done ? 1 : 2;
			done = done && q.put4(w, dst, 0, 7);
			break;
		case 11: // what is deferred fills it, and is rung for
			for (u64 i = 0; i < a.rounds && done; i++) done = q.put4(w, dst, 4 * (i & 1023), (u32)i + 1, NIC_DEFER);
			done = done && q.flush(w);
			break;
		case 12: // until an entry has failed
			do done = q.put4(w, dst, 0, 7);
			while (done);
			break;
		}
		a.result[0] = done ? 1 : 2;
	}
	o.end(a.state);
}
`

// TestSourceCompiles: NVRTC takes the kernels of these tests without a warning, for GPUs of each kind.
func TestSourceCompiles(t *testing.T) {
	cudatest.NVRTC(t)
	c, err := kernel.NVRTC()
	check(t, err)
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		code, err := c.Compile(t.Context(), kernel.Spec{Name: "nic", Source: source, Headers: device.Headers(), Arch: arch})
		if err != nil || code.Log != "" {
			t.Errorf("%s: %v %s", arch, err, code.Log)
		}
	}
}

// TestConstants: the numbers in nic.cuh are package mlx5's.
func TestConstants(t *testing.T) {
	emulate.Need(t)
	c, err := emulate.Compiler()
	check(t, err)
	asserts := layout.Constants(map[string]int{
		"NIC_NOP": int(mlx5.Nop), "NIC_WRITE": int(mlx5.Write), "NIC_FETCH_ADD": int(mlx5.FetchAdd),
		"NIC_MASKED_FETCH_ADD": int(mlx5.MaskedFetchAdd), "NIC_MASKED4": mlx5.Masked4,
		"(int)NIC_ENTRY": mlx5.EntryBytes, "(int)NIC_COMPLETION": mlx5.CompletionBytes,
		"(int)NIC_STATUS": mlx5.StatusAt, "(int)NIC_ERROR": mlx5.SyndromeAt - 3,
		"(int)(NIC_INLINE >> 4)": int(mlx5.InlineBit >> 4), "(int)(NIC_SIGNALLED >> 24)": int(mlx5.Signalled),
		"(int)NIC_MESSAGE": mlx5.MaxMessage,
	})
	text := "#include \"nic.cuh\"\nnamespace weft {\n" + asserts + "}\nextern \"C\" __global__ void nothing() {}\n"
	spec := kernel.Spec{Name: "constants", Source: text, Headers: device.Headers(), Arch: "sm_90a"}
	_, err = c.Compile(t.Context(), spec)
	check(t, err)
}

// TestEntries: what a kernel writes is what package mlx5 writes, byte for byte, and the doorbell is rung once.
func TestEntries(t *testing.T) { entriesMatch(t, emulated(t, 1)) }

func TestEntriesOnGPU(t *testing.T) { entriesMatch(t, real(t)) }

func entriesMatch(t *testing.T, m machine) {
	const depth = 16
	r := newRig(t, m, device.Headers(), softnic.Options{}, 1, depth)
	r.run("post", 1, 32)
	dst, src := r.argument.Peer.Dst, r.argument.Peer.Src
	far := func(at uint64) mlx5.Range { return mlx5.Range{Address: dst.Address + at, Key: farKey} }
	home := func(n uint32) mlx5.Range { return mlx5.Range{Address: r.pairs[0].Home, Key: homeKey, Bytes: n} }
	word := []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}
	want := []mlx5.Entry{
		{Opcode: mlx5.Write, Remote: far(0x100), Local: mlx5.Range{Address: src.Address + 0x40, Key: nearKey, Bytes: 7168}},
		{Opcode: mlx5.Write, Remote: far(0x100), Inline: word},
		{Opcode: mlx5.Write, Remote: far(0x104), Inline: word[:4]},
		{Opcode: mlx5.FetchAdd, Remote: far(0x108), Local: home(8), Add: 0x0102030405060708, Flags: mlx5.Signalled},
		{Opcode: mlx5.MaskedFetchAdd, Modifier: mlx5.Masked4, Remote: far(0x10c), Local: home(4), Add: 0xfffffffe},
		{Opcode: mlx5.Nop, Flags: mlx5.Signalled},
	}
	for i, e := range want {
		var block [mlx5.EntryBytes]byte
		e.Index, e.Queue = uint16(i), number
		check(t, e.Encode(&block))
		n := e.Segments() * mlx5.SegmentBytes
		if got := r.memories[0].Send[i*mlx5.EntryBytes:][:n]; !bytes.Equal(got, block[:n]) {
			t.Errorf("%s, entry %d:\n% x, want\n% x", e.Opcode, i, got, block[:n])
		}
	}
	next := uint64(len(want))
	if got := binary.LittleEndian.Uint64(r.memories[0].Record); got != uint64(mlx5.SendRecord(next))<<32 {
		t.Errorf("the record is %#x", got)
	}
	if got := binary.LittleEndian.Uint64(r.memories[0].Register); got != mlx5.Register(next, number) {
		t.Errorf("the register is %#x", got)
	}
	for r.nic.Step() {
	}
	if r.queues[0].Rings() != 1 || r.queues[0].Executed() != next {
		t.Errorf("%d rings, %d entries", r.queues[0].Rings(), r.queues[0].Executed())
	}
	r.fine()
}

// works runs the kernel work with so many entries at the least, and checks what they left.
func works(t *testing.T, m machine, o softnic.Options, pairs, depth, entries int) {
	t.Helper()
	const blocks, threads = 2, 16
	r := newRig(t, m, device.Headers(), o, pairs, depth)
	rounds := uint64((entries + 5*blocks*threads - 1) / (5 * blocks * threads))
	r.argument.Rounds, r.argument.At = rounds, countsAt
	r.serve()
	begun := time.Now()
	r.run("work", blocks, threads)
	r.halt()
	r.fine()
	all := rounds * blocks * threads
	if got := r.rights(blocks * threads); got != all {
		t.Errorf("%d rounds of %d are right", got, all)
	}
	sum, threes := binary.NativeEndian.Uint64(r.far[countsAt:]), binary.NativeEndian.Uint32(r.far[countsAt+8:])
	if sum != all*(all+1)/2 || threes != uint32(3*all) {
		t.Errorf("the sums are %d and %d, want %d and %d", sum, threes, all*(all+1)/2, uint32(3*all))
	}
	var executed, rings uint64
	for _, q := range r.queues {
		executed, rings = executed+q.Executed(), rings+q.Rings()
	}
	t.Logf("%d entries over %d queue pairs of %d, %d rings seen, %v", executed, pairs, depth, rings,
		time.Since(begun).Round(time.Millisecond))
}

// rights is how many rounds of so many threads of work were right.
func (r *rig) rights(threads int) (sum uint64) {
	for i := range threads {
		sum += r.result(i)
	}
	return sum
}

// TestWork: threads of several blocks share queue pairs that are much too small for them.
func TestWork(t *testing.T) { work(t, func(t *testing.T) machine { return emulated(t, 1) }) }

func TestWorkOnGPU(t *testing.T) {
	real(t)
	work(t, func(t *testing.T) machine { return real(t) })
}

func work(t *testing.T, m func(*testing.T) machine) {
	for i, o := range []softnic.Options{{}, {Seed: 1}, {Seed: 2, Early: true}} {
		for _, depth := range []int{1, 2, 16} {
			t.Run(fmt.Sprintf("%+v, %d", o, depth), func(t *testing.T) { works(t, m(t), o, 1+2*i, depth, 600) })
		}
	}
}

// TestSoak: many entries, over the ends of the queues and of their 16-bit index.
func TestSoak(t *testing.T) {
	works(t, emulated(t, *soakSeed), softnic.Options{Seed: *soakSeed}, 3, 256, *soakOps)
}

func TestSoakOnGPU(t *testing.T) {
	works(t, real(t), softnic.Options{Seed: *soakSeed}, 3, 256, *soakOps)
}

// TestMistakes: without one of its fences, with the wrong word of the record and without back-pressure the header
// is caught, by the card or by what is wrong afterwards. So is a card whose writes overtake each other.
func TestMistakes(t *testing.T) {
	emulate.Need(t)
	const record = "fence_sys(); // the record, before the register"
	const register = "fence_sys(); // the register, before that"
	const later = "for (u32 i = 0; i < 40; i++) load_relaxed_gpu4(&state->polling); fence_sys();//"
	mistakes := []struct {
		name    string
		o       softnic.Options
		changes []string // texts, and what they become
	}{
		{name: "relaxed", o: softnic.Options{Relaxed: true}},
		{name: "entry", changes: []string{"fence_sys(); // the entry and what it tells of, before the mark", ""}},
		{name: "record", changes: []string{record, "", register, later}},
		{name: "slot 0", changes: []string{"store_relaxed_sys4(record,", "store_relaxed_sys4(record - 1,"}},
		{name: "no room", changes: []string{"&state->completed) > mask) {", "&state->completed) > 2 * mask + 1) {"}},
	}
	if !emulate.Everything() {
		mistakes = mistakes[1:3] // those that the card itself reports, whatever the timing
	}
	for _, mistake := range mistakes {
		t.Run(mistake.name, func(t *testing.T) {
			headers := device.Headers()
			for c := range slices.Chunk(mistake.changes, 2) {
				changed := strings.ReplaceAll(headers["nic.cuh"], c[0], c[1])
				if changed == headers["nic.cuh"] {
					t.Fatalf("nic.cuh has no %q", c[0])
				}
				headers["nic.cuh"] = changed
			}
			for seed := range uint64(200) {
				o := mistake.o
				o.Seed = seed + 1
				const blocks, threads, rounds = 2, 8, 8
				r := newRig(t, emulated(t, seed+1), headers, o, 1, 8)
				r.reset(time.Second)
				r.argument.Rounds, r.argument.At, r.argument.Mode = rounds, countsAt, 1
				r.serve()
				r.run("work", blocks, threads)
				r.halt()
				if err := r.nic.Check(); err != nil || r.rights(blocks*threads) != blocks*threads*rounds {
					t.Logf("with seed %d: %v", seed+1, err)
					return
				}
			}
			t.Error("nothing was found")
		})
	}
}

// TestKernelWaits: calls that do not fit are refused, and waits end: at the deadline, by the abort word, when an
// entry has failed. The record says why.
func TestKernelWaits(t *testing.T) { kernelWaits(t, emulated(t, 1)) }

func TestKernelWaitsOnGPU(t *testing.T) { kernelWaits(t, real(t)) }

func kernelWaits(t *testing.T, all machine) {
	const depth = 8
	start := func(t *testing.T, mode, at uint64) *rig {
		r := newRig(t, all, device.Headers(), softnic.Options{Seed: 1}, 2, depth)
		r.argument.Mode, r.argument.At, r.argument.Rounds = mode, at, 3000
		return r
	}
	want := func(t *testing.T, r *rig, cause uint32) *device.Record {
		t.Helper()
		r.run("one", 1, 32)
		w := r.record()
		if w.State != device.RecordWritten || w.Cause != cause || w.Peer != 1 || r.result(0) != 2 {
			t.Errorf("cause %d, want %d; peer %d, result %d", w.Cause, cause, w.Peer, r.result(0))
		}
		return w
	}
	for _, c := range []struct{ mode, at uint64 }{
		{0, windowBytes - 7},
		{0, ^uint64(0)},
		{1, windowBytes - 7},
		{2, 0},
		{3, windowBytes - 3},
		{4, windowBytes - 7},
		{5, windowBytes},
		{5, 2},
		{6, windowBytes},
		{6, 4},
		{7, 0},
	} {
		t.Run(fmt.Sprintf("refused %d at %#x", c.mode, c.at), func(t *testing.T) {
			r := start(t, c.mode, c.at)
			want(t, r, device.CauseInvalid)
			for r.nic.Step() {
			}
			if r.queues[0].Executed() != 0 || r.queues[0].Rings() != 0 {
				t.Error("an entry was posted")
			}
		})
	}
	t.Run("fits", func(t *testing.T) {
		for mode, at := range map[uint64]uint64{0: windowBytes - 8, 3: windowBytes - 4, 4: 3, 5: 4, 6: 8, 8: 0, 9: 0} {
			r := start(t, mode, at)
			r.serve()
			r.run("one", 1, 32)
			if r.halt(); r.result(0) != 1 {
				t.Errorf("mode %d failed", mode)
			}
			r.fine()
		}
	})
	t.Run("deferred", func(t *testing.T) {
		r := start(t, 11, 0)
		r.serve()
		r.run("one", 1, 32)
		r.halt()
		r.fine()
		for i := range uint32(1024) {
			last := i + 1
			for last+1024 <= 3000 {
				last += 1024
			}
			if got := binary.NativeEndian.Uint32(r.far[4*i:]); got != last {
				t.Fatalf("word %d is %d, want %d", i, got, last)
			}
		}
	})
	for name, cause := range map[string]uint32{"deadline": device.CauseTimeout, "abort": device.CauseAbort} {
		for _, mode := range []uint64{8, 9, 10} {
			t.Run(fmt.Sprintf("%s %d", name, mode), func(t *testing.T) {
				r := start(t, mode, 0)
				r.queues[0].Stall(true)
				r.serve()
				if cause == device.CauseAbort {
					r.pinned[abortAt] = 1
				} else {
					r.reset(30 * time.Millisecond)
				}
				want(t, r, cause)
				if mode == 10 && r.result(1) != 1 {
					t.Error("the queue was full too early")
				}
				r.halt()
				check(t, r.nic.Check())
			})
		}
	}
	for _, syndrome := range []mlx5.Syndrome{mlx5.RetryExceeded, mlx5.NotReady, mlx5.RemoteAccess, 0x77} {
		for _, mode := range []uint64{8, 12} {
			t.Run(fmt.Sprintf("%s %d", syndrome, mode), func(t *testing.T) {
				r := start(t, mode, 0)
				entry := 5 * mode / 12 // number 3 or 5 of several, or the only one
				if mode == 8 {
					entry = 0
				}
				r.queues[0].Fail(entry, softnic.Fault{Retries: 2, Syndrome: syndrome, Vendor: 0x68})
				r.serve()
				w := want(t, r, device.CauseNIC)
				if w.Expected != entry || w.Seen != uint64(device.NicFailed)|uint64(syndrome)<<8|0x68 {
					t.Errorf("entry %d failed with %#x, want entry %d", w.Expected, w.Seen, entry)
				}
				// The queue stays failed.
				r.reset(30 * time.Second)
				r.argument.Mode = 8
				want(t, r, device.CauseNIC)
				r.halt()
				check(t, r.nic.Check())
			})
		}
	}
	t.Run("wrong key", func(t *testing.T) {
		r := start(t, 12, 0)
		r.argument.Peer.Dst.Key++
		r.serve()
		if w := want(t, r, device.CauseNIC); mlx5.Syndrome(w.Seen>>8) != mlx5.RemoteAccess || w.Expected != 0 {
			t.Errorf("entry %d, %#x", w.Expected, w.Seen)
		}
	})
	t.Run("lost ring", func(t *testing.T) {
		r := start(t, 8, 0)
		r.queues[0].Drop(1)
		r.serve()
		r.run("one", 1, 32)
		r.halt()
		r.fine()
	})
}

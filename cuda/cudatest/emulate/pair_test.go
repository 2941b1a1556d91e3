package emulate_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/device"
)

// exchange sends words to the other rank, which awaits them as values that are their own flags, in
// one of three turns; what was read is emptied.
const exchange = `#include "flags.cuh"
using namespace weft;
struct Arguments { State *state; u32 *seen; u32 times; Group group; };
extern "C" __global__ void k(const __grid_constant__ Arguments a) {
	Count count = *count_of(a.state, blockIdx.x);
	u64 epoch = count.epoch;
	u32 turn = count.turn, other = 1 - a.group.rank, n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
	u32 before = turn == 0 ? 2 : turn - 1;
	Wait w(a.group, a.state, 7, epoch);
	uint4 *there = (uint4 *)a.group.window[other] + turn * n, *here = (uint4 *)a.group.window[a.group.rank];
	u32 v = (u32)epoch * 1000 + i;
	store_relaxed_sys16(there + i, make_uint4(v, v + 1, v + 2, v + 3));
	uint4 got = await16(w, other, here + turn * n + i);
	if (!w.over && (got.x != v || got.y != v + 1 || got.z != v + 2 || got.w != v + 3)) atomicAdd(a.seen, 1);
	store_relaxed_sys16(here + before * n + i, empty16());
	leave(a.state, epoch, turn, true);
}`

type pairArguments struct {
	State cuda.Pointer
	Seen  cuda.Pointer
	Times uint32
	_     uint32
	Group device.Group
}

// pair is two ranks, each on its device.
type pair struct {
	*rig
	arguments [2]pairArguments
	states    [2][]uint32
	seen      [2][]uint32
	records   [2][]uint32
	functions [2]*cuda.Function
}

func newPair(t testing.TB, source string, words int, timeout time.Duration, o emulate.Options) *pair {
	r := newRig(t, 2, o)
	p := &pair{rig: r}
	r.ok(r.contexts[0].EnablePeer(r.contexts[1]))
	r.ok(r.contexts[1].EnablePeer(r.contexts[0]))
	t.Cleanup(func() {
		for i := range 2 {
			if err := r.contexts[i].DisablePeer(r.contexts[1-i]); err != nil && !r.wild {
				t.Error(err)
			}
		}
	})
	var windows [2]cuda.Pointer
	for i := range 2 {
		p.functions[i] = r.function(i, source)
		var window []uint32
		windows[i], window = r.alloc(i, words)
		for k := range window {
			window[k] = 0xFFFFFFFF
		}
	}
	for i := range 2 {
		a := &p.arguments[i]
		for k := range 2 {
			a.Group.Window[k] = uint64(windows[k])
		}
		var abort, record cuda.Pointer
		abort, _ = r.alloc(i, 2)
		record, p.records[i] = r.alloc(i, device.RecordBytes/4)
		claim, _ := r.alloc(i, 1)
		a.Group.Abort, a.Group.Record, a.Group.Claim = uint64(abort), uint64(record), uint64(claim)
		a.Group.Ranks, a.Group.Rank = 2, uint32(i)
		a.State, p.states[i] = r.alloc(i, (device.StateBytes+2*device.CountBytes)/4)
		p.states[i][4] = uint32(timeout) // State.timeout
		p.states[i][5] = uint32(uint64(timeout) >> 32)
		a.Seen, p.seen[i] = r.alloc(i, 1)
	}
	return p
}

// both launches on both devices at once, so many times.
func (p *pair) both(times, blocks, threads int) [2]error {
	var wait sync.WaitGroup
	var errs [2]error
	for i := range 2 {
		l, err := p.functions[i].Prepare(
			cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(blocks)}, Block: cuda.Dim{X: uint32(threads)}}, p.arguments[i])
		p.ok(err)
		wait.Go(func() {
			for range times {
				if errs[i] = l.Start(p.streams[i]); errs[i] != nil {
					return
				}
			}
		})
	}
	wait.Wait()
	return errs
}

// TestExchange: two devices exchange values over hundreds of launches, in every mode.
func TestExchange(t *testing.T) {
	for _, o := range []emulate.Options{{}, {Tear: true}, {Tear: true, Seed: 1}, {Seed: 2}} {
		t.Run(fmt.Sprintf("seed %d, tear %v", o.Seed, o.Tear), func(t *testing.T) {
			times, blocks, threads := 1000, 2, 64
			if testing.Short() {
				times = 100
			} else if !emulate.Everything() {
				times = 250
			}
			p := newPair(t, exchange, 3*blocks*threads*4, 10*time.Second, o)
			for i, err := range p.both(times, blocks, threads) {
				if err != nil {
					t.Errorf("device %d: %v", i, err)
				}
				if p.seen[i][0] != 0 || p.states[i][device.StateBytes/4] != uint32(times) {
					t.Errorf("device %d: %d wrong, epoch %d, want %d; record %v", i, p.seen[i][0],
						p.states[i][device.StateBytes/4], times, p.records[i])
				}
			}
		})
	}
}

// TestTear: who takes the last word of 16 bytes for all of them finds out.
func TestTear(t *testing.T) {
	const careless = `#include "flags.cuh"
using namespace weft;
struct Arguments { State *state; u32 *seen; u32 times; Group group; };
extern "C" __global__ void k(const __grid_constant__ Arguments a) {
	Count count = *count_of(a.state, blockIdx.x);
	u64 epoch = count.epoch;
	u32 turn = count.turn, other = 1 - a.group.rank, n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
	u32 before = turn == 0 ? 2 : turn - 1;
	Wait w(a.group, a.state, 7, epoch);
	uint4 *there = (uint4 *)a.group.window[other] + turn * n, *here = (uint4 *)a.group.window[a.group.rank];
	store_relaxed_sys16(there + i, make_uint4(1, 2, 3, 4));
	uint4 got;
	do got = load_relaxed_sys16(here + turn * n + i); while (got.w == EMPTY && w.more(other, 0, 0));
	if (!full(got)) atomicAdd(a.seen, 1);
	while (!full(got) && w.more(other, 0, 0)) got = load_relaxed_sys16(here + turn * n + i);
	store_relaxed_sys16(here + before * n + i, empty16());
	leave(a.state, epoch, turn, true);
}`
	for _, tear := range []bool{false, true} {
		times, blocks, threads := 300, 2, 64
		p := newPair(t, careless, 3*blocks*threads*4, 10*time.Second, emulate.Options{Tear: tear, Seed: 3})
		for i, err := range p.both(times, blocks, threads) {
			if err != nil {
				t.Fatalf("device %d: %v", i, err)
			}
		}
		if tears := p.seen[0][0] + p.seen[1][0]; tear && tears == 0 {
			t.Error("no access came apart")
		}
	}
}

// TestTimeout: a rank that waits for one who does not come leaves a record, in time.
func TestTimeout(t *testing.T) {
	p := newPair(t, exchange, 3*64*4, 50*time.Millisecond, emulate.Options{})
	r := p.rig
	r.ok(r.start(p.functions[0], 0, 2, 32, p.arguments[0]))
	if got := p.records[0]; got[0] != device.RecordWritten || got[1] != 7 || got[5] != 1 ||
		got[6] != device.CauseTimeout {
		t.Errorf("the record is %v", got)
	}
}

// TestFence: rows and then a flag. Without the fence between them the flag comes before some row;
// with it, or as a release, never.
func TestFence(t *testing.T) {
	const flagged = `#include "flags.cuh"
using namespace weft;
struct Arguments { State *state; u32 *seen; u32 times; Group group; };
extern "C" __global__ void k(const __grid_constant__ Arguments a) {
	Count count = *count_of(a.state, blockIdx.x);
	u64 epoch = count.epoch;
	u32 turn = count.turn, other = 1 - a.group.rank, n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
	Wait w(a.group, a.state, 7, epoch);
	uint4 *there = (uint4 *)a.group.window[other], *here = (uint4 *)a.group.window[a.group.rank];
	u32 v = (u32)epoch + 1;
	store16(there + turn * n + i, make_uint4(v, v, v, v));
	__syncthreads();
	u32 *arrived = (u32 *)(there + 3 * n) + blockIdx.x;
	if (threadIdx.x == 0) { SIGNAL }
	if (threadIdx.x == 0) await_epoch(w, other, (u32 *)(here + 3 * n) + blockIdx.x, v);
	__syncthreads();
	uint4 got = here[turn * n + i];
	if (got.x != v || got.y != v || got.z != v || got.w != v) atomicAdd(a.seen, 1);
	leave(a.state, epoch, turn, true);
}`
	for _, tt := range []struct {
		signal string
		wrong  bool
	}{
		{"store_relaxed_sys4(arrived, v);", true},
		{"fence_sys(); store_relaxed_sys4(arrived, v);", false},
		{"store_release_sys4(arrived, v);", false},
		{"__threadfence_system(); *(volatile u32 *)arrived = v;", false},
	} {
		t.Run(tt.signal, func(t *testing.T) {
			const times, blocks, threads = 200, 2, 64
			source := strings.Replace(flagged, "SIGNAL", tt.signal, 1)
			p := newPair(t, source, 3*blocks*threads*4+blocks, 10*time.Second, emulate.Options{Tear: true, Seed: 5})
			for i := range 2 {
				window := slice(p.machine.Bytes(cuda.Pointer(p.arguments[i].Group.Window[i]), 4*(3*blocks*threads*4+blocks)))
				clear(window)
			}
			for i, err := range p.both(times, blocks, threads) {
				if err != nil || p.states[i][device.StateBytes/4] != times {
					t.Fatalf("device %d: epoch %d, %v", i, p.states[i][device.StateBytes/4], err)
				}
			}
			if wrong := p.seen[0][0]+p.seen[1][0] > 0; wrong != tt.wrong {
				t.Errorf("%d and %d rows were late", p.seen[0][0], p.seen[1][0])
			}
		})
	}
}

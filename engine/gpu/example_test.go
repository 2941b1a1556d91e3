package gpu_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine/gpu"
)

// gatherSource is a kernel that gathers a word from every rank. A word is its own flag, and stands
// in one of three buffers in turn: the buffer of the operation before is emptied for the operation
// after the next. Its sender has heard from this rank by then.
const gatherSource = `#include "flags.cuh"
using namespace weft;

struct Gather {
	State *state;
	u64 words; // in the window: 3 turns x [ranks]
	const u32 *in;
	u32 *out; // [ranks]
	Group group;
};

enum { GATHER = 1 }; // what records call the operation

extern "C" __global__ void gather(const __grid_constant__ Gather a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, GATHER)) return;
	u32 peer = threadIdx.x, ranks = a.group.ranks;
	if (peer < ranks && !holds(o.mask, peer)) {
		u32 *there = (u32 *)(a.group.window[peer] + a.words), *here = (u32 *)(o.own + a.words);
		Wait wait(a.group, a.state, GATHER, o.epoch);
		store_relaxed_sys4(there + o.turn * ranks + a.group.rank, clean(*a.in));
		u32 word = await4(wait, peer, here + o.turn * ranks + peer);
		if (!wait.over) a.out[peer] = word;
		store_relaxed_sys4(here + turn_before(o.turn) * ranks + peer, EMPTY);
	}
	o.end(a.state);
}`

// gatherArgs is Gather.
type gatherArgs struct {
	state   cuda.Pointer
	words   int64
	in, out cuda.Pointer
	group   device.Group
}

// words name the kernel's operation in errors.
var words = &device.Words{Operation: func(uint32) string { return "gather" }}

// Gatherer gathers a word from every rank.
type Gatherer struct {
	program *gpu.Program
	room    *gpu.Room
	lane    *gpu.Lane
	launch  gpu.Launch[gatherArgs]
}

// NewGatherer makes a Gatherer. It is collective.
func NewGatherer(ctx context.Context, comm *weft.Comm) (g *Gatherer, err error) {
	const op, threads = "new gatherer", 64
	g = &Gatherer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	spec := kernel.Spec{Name: "gather", Source: gatherSource, Headers: device.Headers(), Arch: comm.Device().Arch()}
	if g.program, err = gpu.Load(ctx, comm, op, gpu.Source{Spec: spec, Extern: []string{"gather"}}); err != nil {
		return g, err
	}
	f := g.program.Functions(0)[0]
	cost, failed := gpu.Cost(threads, 0, f)
	if g.room, err = gpu.Fit(ctx, comm, gpu.Want{Op: op, Cost: max(cost, threads), Least: 1}); err != nil {
		return g, err
	}
	if err = g.room.Take(ctx, 1, "one block", failed); err != nil {
		return g, err
	}
	var window gpu.Workspace
	args := gatherArgs{words: window.Ones(3 * 4 * int64(comm.Size()))}
	if g.launch, err = gpu.NewLaunch(f, cuda.LaunchConfig{Block: cuda.Dim{X: threads}}, args); err != nil {
		return g, err
	}
	g.lane, err = gpu.NewLane(ctx, comm, gpu.LaneSpec{
		Op: op, Owner: "gatherer", Words: words, Window: &window, Local: gpu.NewLocal(1),
		Moved: func(l *gpu.Lane) { g.launch.Args.group, g.launch.Args.state = l.Group(0), l.Local(0) },
	})
	return g, err
}

// Gather gathers the words at in, one of each rank, at out: [ranks] words, of which those of masked
// ranks are left as they are. It is collective.
func (g *Gatherer) Gather(ctx context.Context, s *weft.Stream, in, out cuda.Pointer) error {
	stream, err := g.lane.Enter(ctx, "gather", s)
	if err != nil {
		return err
	}
	g.launch.Args.in, g.launch.Args.out = in, out
	if err := g.lane.Start(stream, g.launch.Launch); err != nil {
		return err
	}
	return g.lane.Finish(ctx, s)
}

// Close frees what the Gatherer has, when nothing of it runs.
func (g *Gatherer) Close() error {
	if g.lane != nil {
		if released, err := g.lane.Close(); !released {
			return err
		}
	}
	g.room.Release()
	return g.program.Close()
}

// Two ranks on GPUs gather a word from each other.
func Example() {
	err := onGPUs(2, func(ctx context.Context, comm *weft.Comm) error {
		g, err := NewGatherer(ctx, comm)
		if err != nil {
			return err
		}
		got, err := gatherOnce(ctx, comm, g, nil, 40+uint32(comm.Rank()))
		if comm.Rank() == 0 {
			fmt.Println(got)
		}
		return errors.Join(err, g.Close())
	})
	if errors.Is(err, errNoGPUs) {
		fmt.Println("[40 41]") // as it would be
	} else if err != nil {
		fmt.Println(err)
	}
	// Output: [40 41]
}

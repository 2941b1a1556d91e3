package gpu_test

import (
	"context"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// TestMulticastOnEmulatedGPUs runs operations of switches by multicast addresses: of operands in windows, of those that
// are copied, and of scratch. Two ranks have one order in which anything may be added up.
func TestMulticastOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	t.Setenv("WEFT_MULTICAST", "1")
	g := ranktest.Emulated(t, cudatest.Config{
		Devices: 2, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1},
	}, emulate.Options{Seed: 1, Tear: true})
	var files []*plan.File
	for _, p := range []*plan.Plan{
		plantest.Switched(2, true), plantest.Switched(2, false), plantest.SwitchPackets(), switchedScratch(2),
		plantest.SwitchedBroadcast(2),
	} {
		files = append(files, build(t, p))
	}
	all := append([]launchOf{{dtype: weft.Float16, chunk: 4096, window: true}, {dtype: weft.Int32, chunk: 64}}, few...)
	run(t, g, 2, memoryBytes, executor.Options{}, patience, runs("a", files, all))
}

// TestMulticastStaysAway: without the address the same plans run, member by member.
func TestMulticastStaysAway(t *testing.T) {
	g := emulatedKernels(t, 3, 1)
	files := []*plan.File{build(t, switchedScratch(3))}
	run(t, g, 3, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
		return runs("a", files, few[:3])(ctx, r)
	})
}

// switchedScratch is an all-reduce through scratch: a switch adds up what each rank copied there, and gives it to all.
func switchedScratch(n int) *plan.Plan {
	p := plan.New("switched scratch", plan.AllReduce(n, 1), plan.Options{InPlace: true})
	c := plantest.Ends(p, n, p.Memory)
	var all []int
	for r := range n {
		all = append(all, r)
	}
	s := p.Switch(plan.Scratch, all...)
	meet := func(r int) {
		b := p.Rank(r).Block(0)
		b.Signal(plantest.Others(c[r], r)...)
		b.Wait(plantest.Others(c[r], r)...)
	}
	for r := range n {
		rank := p.Rank(r)
		b, in, scratch := rank.Block(0), rank.Input(), rank.Scratch(n)
		b.Copy(scratch.Chunk(0, n), in.Chunk(0, n))
		meet(r)
		b.SwitchReduceStore(s, r, r, 1)
		meet(r)
		b.Copy(in.Chunk(0, n), scratch.Chunk(0, n))
		meet(r)
	}
	return p
}

package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

// drop removes the n-th operation of a kind from a block.
func drop(f *plan.File, rank, block int, kind spec.Kind, n int) {
	b := &f.Ranks[rank].Blocks[block]
	for i := range b.Ops {
		if b.Ops[i].Kind != kind {
			continue
		}
		if n == 0 {
			b.Ops = slices.Delete(b.Ops, i, i+1)
			return
		}
		n--
	}
	panic("there is no such operation")
}

// swap exchanges the first operations of two kinds in a list.
func swap(ops []spec.Op, a, b spec.Kind) {
	of := func(kind spec.Kind) int {
		return slices.IndexFunc(ops, func(op spec.Op) bool { return op.Kind == kind })
	}
	i, k := of(a), of(b)
	ops[i], ops[k] = ops[k], ops[i]
}

// TestClasses has a defect of each class, in plans of ours that are right without it, and what the verifier says of it.
// Where it is an error, or no plan that a GPU of today would spoil, some schedule of the simulator fails.
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		name     string
		of       func() *plan.Plan
		change   func(f *plan.File)
		class    plan.Class
		warning  bool
		text     string
		harmless bool // no schedule shows it
	}{
		{
			name: "cycle", of: func() *plan.Plan { return plantest.Gather(2, false) },
			change: func(f *plan.File) {
				for r := range f.Ranks {
					swap(f.Ranks[r].Blocks[0].Ops, spec.Signal, spec.Wait)
				}
			},
			class: plan.Deadlock, text: "blocks wait for each other in a circle: rank 0, block 0, operation 0 (wait) waits " +
				"for a signal of memory channel 0 of rank 0, from rank 1; rank 1, block 0, operation 0 (wait)",
		},
		{
			name: "pairing", of: plantest.Groups,
			change: func(f *plan.File) {
				u := f.Ranks[0].Blocks
				u[2].Channels[0].IDs[0], u[0].Channels[0].IDs[0] = 0, 2
			},
			class: plan.Balance, text: "memory channel 0 of rank 1, from rank 0 gets 2 signals and 1 waits a launch",
		},
		{
			name: "no pair", of: func() *plan.Plan { return plantest.Gather(2, false) },
			change: func(f *plan.File) { f.Ranks[1].Channels, f.Ranks[1].Blocks = nil, []spec.Block{{}} },
			class:  plan.Deadlock, text: "rank 1 has no channel that pairs with the one on which a block waits: rank 0, block 0",
		},
		{
			name: "drift", of: func() *plan.Plan { return plantest.Pipelined(2) },
			change: func(f *plan.File) {
				p := &f.Ranks[1].Blocks[1].Ops[0]
				p.Ops = append(p.Ops, p.Ops[len(p.Ops)-1])
			},
			class: plan.Balance, text: "semaphore 1 of rank 1 begins a launch at 1 and ends it at 2: 2 releases, 1 acquires",
			harmless: true, // one put too early meets a signal of its peers
		},
		{
			name: "race of ranks", of: func() *plan.Plan { return plantest.Ring(3) },
			change: func(f *plan.File) {
				drop(f, 1, 0, spec.Wait, 0)
				drop(f, 0, 0, spec.Signal, 0)
			},
			class: plan.Race, text: "nothing orders two operations on the same bytes: rank 1, block 0, operation 7 (put) " +
				"reads chunk 0 of the output of rank 1; rank 0, block 0, operation 3 (put) writes chunk 0 of the output of rank 1",
		},
		{
			name: "nop before a signal", of: func() *plan.Plan { return plantest.Ring(3) },
			change: func(f *plan.File) { drop(f, 0, 0, spec.Nop, 1) },
			class:  plan.Race, text: "for one thread only; a nop is missing beside it: rank 1, block 0",
		},
		{
			name: "race in a block", of: plantest.BlocksThatShare,
			change: func(f *plan.File) {
				b := &f.Ranks[0].Blocks[0]
				i := slices.IndexFunc(b.Ops, func(op spec.Op) bool { return op.Kind == spec.Barrier })
				b.Ops = slices.Delete(b.Ops, i, i+1)
				f.Ranks[0].Blocks[1].Ops = f.Ranks[0].Blocks[1].Ops[1:]
				b.Ops[i].Group, b.Ops[i+1].Group = spec.Group{}, spec.Group{}
				for k := range b.Ops {
					if b.Ops[k].Kind == spec.Put {
						b.Ops[k].Group = spec.Group{ID: 1, Size: 2}
					}
				}
			},
			class: plan.RaceInBlock, text: "threads of a block touch the same bytes, and no nop is between: rank 0, block 0",
		},
		{
			name: "wrong result", of: func() *plan.Plan { return plantest.OneShotPackets(3, plan.Sum) },
			change: func(f *plan.File) {
				for i, op := range f.Ranks[2].Blocks[0].Ops {
					if op.Kind == spec.ReducePackets {
						f.Ranks[2].Blocks[0].Ops[i].Src[2] = op.Src[1]
					}
				}
			},
			class: plan.Result, text: "chunk 0 of the output of rank 2 is wrong: of the contributions, that of rank 0 is " +
				"there 2 times, that of rank 1 is missing",
		},
		{
			name: "wrong shape", of: func() *plan.Plan { return plantest.Gather(2, false) },
			change: func(f *plan.File) { f.Collective = spec.AllToAll },
			class:  plan.Result, text: "inputs of 1 chunks and outputs of 2 on 2 ranks are none of an alltoall",
		},
		{
			name: "slot written twice", of: func() *plan.Plan { return plantest.TwoPhasePackets(2) },
			change: func(f *plan.File) {
				for r := range f.Ranks {
					ops := f.Ranks[r].Blocks[0].Ops
					ops[1].Dst[1].Index = ops[0].Dst[0].Index
				}
			},
			class: plan.Packets, text: "a slot is written twice in one launch, and its reader cannot tell the packets apart: " +
				"rank 0, block 0, operation 1 (respkt) writes the packets of chunk 0 of the scratch of rank 1",
		},
		{
			name: "packets and data", of: func() *plan.Plan { return plantest.OneShotPackets(2, plan.Sum) },
			change: func(f *plan.File) {
				b := &f.Ranks[1].Blocks[0]
				b.Ops = append([]spec.Op{{
					Kind: spec.Copy, Src: []spec.Place{{Buffer: spec.Input, Size: 1}},
					Dst: []spec.Place{{Buffer: spec.Scratch, Index: 3, Size: 1}},
				}, {}}, b.Ops...)
			},
			class: plan.Packets, text: "bytes of scratch are packets in one operation and other data in another",
		},
		{
			name: "packets of nobody", of: func() *plan.Plan { return plantest.OneShotPackets(2, plan.Sum) },
			change: func(f *plan.File) { drop(f, 1, 0, spec.PutPackets, 0) },
			class:  plan.Deadlock, text: "no operation writes packets for which a block waits: rank 0, block 0, operation 1 " +
				"(repkt) waits for the packets of chunk 2 of the scratch of rank 0",
		},
		{
			name: "packets that are not there", of: func() *plan.Plan { return plantest.Hierarchical(2, 2, 1, 1) },
			change: func(f *plan.File) { drop(f, 0, 0, spec.Nop, 0) },
			class:  plan.Packets, text: "a port sends packets that may not be there yet: rank 0, block 0, operation 2 (ppkt)",
		},
		{
			name: "packets in windows", of: func() *plan.Plan { return plantest.OneShotPackets(2, plan.Sum) },
			change: func(f *plan.File) {
				b := &f.Ranks[0].Blocks[0]
				b.Ops = []spec.Op{{Kind: spec.Pipeline, Unit: 1024, Chunks: 1, Ops: b.Ops}}
			},
			class: plan.Packets, text: "repeat whole in every window of a pipeline",
		},
		{
			name: "barrier without a block", of: plantest.BlocksThatShare,
			change: func(f *plan.File) {
				b := &f.Ranks[1].Blocks[1]
				b.Ops = b.Ops[1:]
			},
			class: plan.Deadlock, text: "2 blocks meet at barrier 0 of rank 1, and 1 use it: rank 1, block 0",
		},
		{
			name: "no exit", of: func() *plan.Plan { return plantest.Gather(2, false) },
			change: func(f *plan.File) {
				for r := range f.Ranks {
					drop(f, r, 0, spec.Signal, 1)
					drop(f, r, 0, spec.Wait, 1)
				}
			},
			class: plan.Lifetime, text: "rank 0 may end before its buffer is written: rank 1, block 0, operation 3 (put)",
		},
		{
			name: "no entry", of: func() *plan.Plan { return plantest.Gather(2, false) },
			change: func(f *plan.File) {
				for r := range f.Ranks {
					drop(f, r, 0, spec.Signal, 0)
					drop(f, r, 0, spec.Wait, 0)
				}
			},
			class: plan.Lifetime, warning: true, text: "nothing says that rank 1 has begun, so its buffer may still be in use",
		},
		{
			name: "source unread", of: func() *plan.Plan { return plantest.Sends(3, 1) },
			change: func(f *plan.File) {
				for r := range f.Ranks {
					drop(f, r, 0, spec.Signal, 1)
					drop(f, r, 0, spec.Wait, 2)
				}
			},
			class: plan.Lifetime, warning: true, text: "a port may still read its source when the rank ends", harmless: true,
		},
		{
			name: "scratch of one half", of: func() *plan.Plan { return plantest.OneShotPackets(3, plan.Sum) },
			change: func(f *plan.File) { f.DoubleScratch = false },
			class:  plan.Lifetime, warning: true, text: "the next launch may write scratch before this one has read it",
		},
		{
			name: "weak order", of: func() *plan.Plan { return plantest.Ring(3) },
			change: func(f *plan.File) {
				for r := range f.Ranks {
					for i, op := range f.Ranks[r].Blocks[0].Ops {
						if op.Kind == spec.Signal {
							f.Ranks[r].Blocks[0].Ops[i].Kind = spec.RelaxedSignal
						}
					}
				}
			},
			class: plan.WeakOrder, warning: true, harmless: true,
			text: "only packets or relaxed signals order two operations on the same bytes",
		},
		{
			name: "packets that some threads got", of: plantest.Overwritten,
			change: func(f *plan.File) { drop(f, 1, 0, spec.Nop, 0) },
			class:  plan.WeakOrder, warning: true, text: "packets order two operations for the threads that got them, and " +
				"others touch the same bytes; a nop is missing: rank 1, block 0, operation 3 (put) writes chunk 0 of the input",
		},
		{
			name: "shared side", of: plantest.Groups,
			change: func(f *plan.File) {
				u := f.Ranks[0].Blocks
				u[2].Channels[0].IDs[0], u[1].Channels[0].IDs[0] = 1, 2
				f.Ranks[1].Blocks[2].Channels[0].IDs[0], f.Ranks[1].Blocks[1].Channels[0].IDs[0] = 1, 2
				u[3].Channels[0].IDs[0] = 4
				f.Ranks[1].Blocks[3].Channels[0].IDs[0] = 4
			},
			class: plan.SharedSide, warning: true, harmless: true,
			text: "several blocks use one side of memory channel 4 of rank 1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := clone(t, build(t, c.of()))
			c.change(f)
			if err := f.Check(); err != nil {
				t.Fatal(err)
			}
			var said []string
			found := false
			for _, x := range plan.Verify(f).Findings {
				said = append(said, x.String())
				found = found || x.Class == c.class && x.Warning == c.warning && strings.Contains(x.String(), c.text)
			}
			if !found {
				t.Errorf("nothing says %v: %s:\n%s", c.class, c.text, strings.Join(said, "\n"))
			}
			failure := ""
			for seed := uint64(0); seed < 300 && failure == ""; seed++ {
				failure = plan.Simulate(f, plan.Simulation{Seed: seed}).Failure
			}
			if (failure == "") != c.harmless {
				t.Errorf("the simulator says %q", failure)
			}
		})
	}
}

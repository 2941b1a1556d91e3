package gpu_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

// sharedSides is an all-gather of two ranks in which two blocks signal through one channel, and two wait on it.
func sharedSides() *plan.Plan {
	p := plan.New("shared sides", plan.AllGather(2, 2), plan.Options{})
	var ready, done [2][]*plan.Channel
	for r := range 2 {
		for range 2 {
			ready[r] = append(ready[r], p.Memory(r, 1-r))
		}
		done[r] = append(done[r], p.Memory(r, 1-r))
	}
	for r := range 2 {
		rank := p.Rank(r)
		in, out, theirs := rank.Input(), rank.Output(), p.Rank(1-r).Output()
		for k := range 2 {
			b := rank.Block(k)
			b.Signal(ready[r][k])
			b.Wait(ready[r][k])
			b.Put(done[r][0], theirs.Chunk(2*r+k, 1), in.Chunk(k, 1))
			b.Signal(done[r][0])
		}
		for k := range 2 {
			b := rank.Block(2 + k)
			b.Copy(out.Chunk(2*r+k, 1), in.Chunk(k, 1))
			b.Wait(done[r][0])
		}
	}
	return p
}

// long is an all-gather of two ranks with more operations in a block than shared memory holds.
func long() *plan.Plan {
	const chunks, turns = 8, 32
	p := plan.New("long", plan.AllGather(2, chunks), plan.Options{})
	c := plantest.Ends(p, 2, p.Memory)
	for r := range 2 {
		rank := p.Rank(r)
		b, in, out, theirs := rank.Block(0), rank.Input(), rank.Output(), p.Rank(1-r).Output()
		for range turns {
			b.Signal(c[r][1-r])
			b.Wait(c[r][1-r])
			for k := range chunks {
				b.Put(c[r][1-r], theirs.Chunk(chunks*r+k, 1), in.Chunk(k, 1))
				b.Copy(out.Chunk(chunks*r+k, 1), in.Chunk(k, 1))
			}
			b.Signal(c[r][1-r])
			b.Wait(c[r][1-r])
		}
	}
	return p
}

// uneven is an all-gather in which one rank has no block, and reads nothing: the other does all.
func uneven() *plan.Plan {
	p := plan.New("uneven", plan.Custom("reading", 2, 2, 2), plan.Options{})
	from, to := p.Memory(0, 1), p.Memory(1, 0)
	b := p.Rank(0).Block(0)
	b.Wait(from)
	b.Get(from, p.Rank(0).Output().Chunk(0, 1), p.Rank(1).Input().Chunk(1, 1))
	b.Copy(p.Rank(0).Output().Chunk(1, 1), p.Rank(0).Input().Chunk(0, 1))
	b.Signal(from)
	q := p.Rank(1).Block(2) // two empty blocks come before it
	q.Copy(p.Rank(1).Output().Chunk(0, 2), p.Rank(1).Input().Chunk(0, 2))
	q.Signal(to)
	q.Wait(to)
	return p
}

// forms are plans whose programs have a form of their own. Windows are the bytes of those of pipelines, or 0: as the
// plan has them.
var forms = []struct {
	name    string
	windows uint64
	build   func() *plan.Plan
}{
	{"shared sides", 0, sharedSides},
	{"long", 0, long},
	{"uneven", 0, uneven},
	{"many blocks", 0, func() *plan.Plan { return manyBlocks(2, 12) }},
	{"direct two-shot", 0, func() *plan.Plan { return directTwoShot(3, 4) }},
	{"packet one-shot", 0, func() *plan.Plan { return onePacketShot(4, 3) }},
	{"two-phase packets of six", 0, func() *plan.Plan { return plantest.TwoPhasePackets(6) }},
	{"windows", 512, func() *plan.Plan { return plantest.Pipelined(3) }},
	{"windows of no whole vectors", 300, func() *plan.Plan { return plantest.Pipelined(2) }},
}

// windowed sets the windows of a plan's pipelines.
func windowed(f *plan.File, bytes uint64) {
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			ops := f.Ranks[r].Blocks[b].Ops
			for i := range ops {
				if bytes > 0 && ops[i].Kind == spec.Pipeline {
					ops[i].Unit = bytes
				}
			}
		}
	}
}

func testForms(t *testing.T, g *ranktest.GPUs) {
	for _, p := range forms {
		t.Run(p.name, func(t *testing.T) {
			f := build(t, p.build())
			windowed(f, p.windows)
			// The verifier proves nothing of sides that several blocks use.
			o := executor.Options{Unverified: p.name == "shared sides"}
			run(t, g, len(f.Ranks), memoryBytes, o, patience, func(ctx context.Context, r *rank) error {
				x, err := r.Load(ctx, f)
				if err != nil {
					return err
				}
				for n, chunk := range []int{16, 16, 2048, 32, 32, 48} {
					l := launchOf{dtype: weft.Float32, chunk: chunk, window: n%2 == 0}
					if err := r.launch(ctx, x, l, uint64(n)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

func TestFormsOnEmulatedGPUs(t *testing.T) { testForms(t, emulatedKernels(t, 6, 3)) }

// TestFormsOnGPUs is the same on real ones.
func TestFormsOnGPUs(t *testing.T) { testForms(t, ranktest.Real(t)) }

// folding is an all-reduce without packets whose blocks have a warp, so that each thread folds several vectors.
func folding(t *testing.T, ranks int, reduce spec.Reduction) *plan.File {
	f := build(t, plantest.OneShotApart(ranks))
	f.Threads = 32
	for _, op := range f.All() {
		if op.Kind.Reduces() {
			op.Reduce = reduce
		}
	}
	return f
}

// testFolds has numbers of vectors that are even for each thread, odd, and odd for some.
func testFolds(t *testing.T, g *ranktest.GPUs, types ...weft.DType) {
	for _, ranks := range []int{2, 5} {
		for _, reduce := range []spec.Reduction{spec.Sum, spec.Min, spec.Max} {
			f := folding(t, ranks, reduce)
			t.Run(fmt.Sprintf("%v of %d", reduce, ranks), func(t *testing.T) {
				run(t, g, ranks, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
					x, err := r.Load(ctx, f)
					if err != nil {
						return err
					}
					for _, d := range types {
						for n, vectors := range []int{1, 31, 33, 64, 65, 96, 127, 161} {
							l := launchOf{dtype: d, chunk: 16 * vectors, window: true, shift: n % 2 * 16}
							if err := r.launch(ctx, x, l, uint64(n)); err != nil {
								return err
							}
						}
					}
					return nil
				})
			})
		}
	}
}

func TestFoldsOnEmulatedGPUs(t *testing.T) {
	testFolds(t, emulatedKernels(t, 5, 4), weft.BFloat16, weft.Float32)
}

// TestFoldsOnGPUs is the same on real ones, with all types.
func TestFoldsOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	var all []weft.DType
	for d := weft.BFloat16; d <= weft.Bool; d++ {
		if d != weft.UE8M0 {
			all = append(all, d)
		}
	}
	testFolds(t, g, all...)
}

package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// capture captures what is enqueued, after other calls without a stream, and hands its graph to then.
func (r *rank) capture(enqueue func(s *weft.Stream) error, then func(s *cuda.Stream, g *cuda.GraphExec) error,
	before ...func(s *weft.Stream) error,
) (err error) {
	for _, f := range before {
		if err := f(nil); err != nil {
			return err
		}
	}
	stream, err := r.comm.Device().Context().NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	graph, err := stream.Capture(func() error { return enqueue(weft.StreamOf(stream)) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, graph.Close()) }()
	exec, err := graph.Instantiate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	return then(stream, exec)
}

// at is a copy of the rank whose operands lie elsewhere in its memory.
func (r *rank) at(offset int) *rank {
	other := *r
	other.offset = offset
	return &other
}

// replays captures graphs of 1, 2, 3 and 5 launches of several sizes, and replays them any number of times, among
// other launches of the same plan.
func replays(f *plan.File, times int) func(ctx context.Context, r *rank) error {
	return func(ctx context.Context, r *rank) error {
		p, err := r.Load(ctx, f)
		if err != nil {
			return err
		}
		random := rand.New(rand.NewPCG(7, 7)) // the same on every rank
		pauses := rand.New(rand.NewPCG(uint64(r.comm.Rank()), 9))
		pick := func() launchOf {
			return launchOf{dtype: weft.BFloat16, chunk: []int{16, 48, 1024, 2048}[random.IntN(4)], window: random.IntN(2) == 0}
		}
		// Captures take no memory: the largest launches come first.
		for _, window := range []bool{true, false} {
			if err := r.launch(ctx, p, launchOf{dtype: weft.BFloat16, chunk: 2048, window: window}, 1); err != nil {
				return err
			}
		}
		const step = 128 << 10
		for _, n := range []int{1, 2, 3, 5} {
			launches := make([]launchOf, n)
			for i := range launches {
				launches[i] = pick()
			}
			outs, ins, wants := make([]weft.Tensor, n), make([]weft.Tensor, n), make([][]byte, n)
			put := func() (err error) {
				for i, l := range launches {
					var again error
					outs[i], ins[i], wants[i], again = r.at((i+1)*step).put(f, l, random.Uint64())
					err = errors.Join(err, again)
				}
				return err
			}
			if err := put(); err != nil {
				return err
			}
			err := r.capture(func(s *weft.Stream) error {
				for i := range launches {
					if err := p.Execute(ctx, s, outs[i], ins[i]); err != nil {
						return err
					}
				}
				return nil
			}, func(s *cuda.Stream, g *cuda.GraphExec) error {
				for replay := range times {
					for range random.IntN(3) { // what they leave is not looked at
						if err := g.Launch(s); err != nil {
							return err
						}
					}
					if err := r.comm.Wait(ctx, weft.StreamOf(s)); err != nil {
						return err
					}
					time.Sleep(time.Duration(pauses.IntN(300)) * time.Microsecond)
					if err := errors.Join(put(), g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s))); err != nil {
						return fmt.Errorf("replay %d: %w", replay, err)
					}
					for i, l := range launches {
						if err := r.check(f, l, outs[i], wants[i]); err != nil {
							return fmt.Errorf("replay %d, launch %d: %w", replay, i, err)
						}
					}
					for range random.IntN(3) {
						if err := r.launch(ctx, p, pick(), random.Uint64()); err != nil {
							return fmt.Errorf("after replay %d: %w", replay, err)
						}
					}
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("graph of %d: %w", n, err)
			}
		}
		return nil
	}
}

// replayed are plans whose state goes on from launch to launch.
var replayed = []plantest.Program{
	{Name: "two-phase packets", Build: func() *plan.Plan { return plantest.TwoPhasePackets(3) }},
	{Name: "two-shot", Build: func() *plan.Plan { return plantest.TwoShot(3) }},
	{Name: "pipelined all-to-all", Build: func() *plan.Plan { return plantest.Pipelined(3) }},
	{Name: "blocks that share", Build: plantest.BlocksThatShare},
	{Name: "sends through ports", Build: func() *plan.Plan { return plantest.Sends(3, 1) }},
}

func testGraphs(t *testing.T, g *ranktest.GPUs, times int) {
	for _, p := range replayed {
		t.Run(p.Name, func(t *testing.T) {
			f := build(t, p.Build())
			run(t, g, len(f.Ranks), memoryBytes, executor.Options{}, patience, replays(f, times))
		})
	}
}

func TestGraphsOnEmulatedGPUs(t *testing.T) {
	times := 2
	if emulate.Everything() {
		times = 30
	}
	testGraphs(t, emulatedKernels(t, 3, 2), times)
}

// TestGraphsOnGPUs is the same on real ones.
func TestGraphsOnGPUs(t *testing.T) { testGraphs(t, ranktest.Real(t), 300) }

// TestCaptureOnEmulatedGPUs: a capture takes no memory and loads no kernel; it is refused, and the same works after.
func TestCaptureOnEmulatedGPUs(t *testing.T) {
	f := build(t, plantest.TwoPhasePackets(2))
	run(t, emulated(t, 2, 1), 2, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
		p, err := r.Load(ctx, f)
		if err != nil {
			return err
		}
		nothing := func(*cuda.Stream, *cuda.GraphExec) error { return nil }
		for _, chunk := range []int{64, 64 << 10} {
			l := launchOf{dtype: weft.Float32, chunk: chunk}
			out, in, _, err := r.put(f, l, 1)
			if err != nil {
				return err
			}
			enqueue := func(s *weft.Stream) error { return p.Execute(ctx, s, out, in) }
			if err := r.capture(enqueue, nothing); !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("a capture before any launch of such chunks: %w", err)
			}
			if err := r.launch(ctx, p, l, 2); err != nil {
				return err
			}
			if err := r.capture(enqueue, nothing); err != nil {
				return err
			}
		}
		return nil
	})
}

package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// anyCase is a call of any kind, the same on every rank whose generator is at the same place.
func anyCase(r *rand.Rand, ranks int, types []weft.DType) gpuCase {
	kinds := kindsOnGPUs()
	c := gpuCase{
		kind: kinds[r.IntN(len(kinds))], dtype: types[r.IntN(len(types))], root: r.IntN(ranks), shift: r.IntN(3),
		count: []int{1, 3, 40, 700, 2500}[r.IntN(5)],
	}
	if c.dtype != weft.Bool {
		c.op = weft.Op(r.IntN(int(weft.Avg) + 1))
	}
	return c
}

// replays captures graphs of 1, 2, 3, 5 and 7 operations, and replays them any number of times, among calls
// of the same group and of another one.
func replays(times int) func(ctx context.Context, r *gpuRank) error {
	return func(ctx context.Context, r *gpuRank) (err error) {
		types := []weft.DType{weft.BFloat16, weft.Int32}
		second, err := New(ctx, r.comm, Options{Staging: gpuStaging, SMs: 2 * r.comm.Size(), DTypes: types})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, second.Close()) }()
		other := *r
		other.Group = second
		order := rand.New(rand.NewPCG(5, 0))
		ranks := r.comm.Size()
		const step = 256 << 10
		eager := func() error {
			for range order.IntN(3) {
				on := []*gpuRank{r, &other}[order.IntN(2)]
				if err := on.check(ctx, anyCase(order, ranks, types)); err != nil {
					return err
				}
			}
			return nil
		}
		for _, n := range []int{1, 2, 3, 5, 7} {
			cases := make([]gpuCase, n)
			calls := make([]*gpuOperands, n)
			put := func() (err error) {
				for i, c := range cases {
					var again error
					calls[i], again = r.put(c, r.memory.Pointer().Add((i+1)*step))
					err = errors.Join(err, again)
				}
				return err
			}
			for i := range cases {
				cases[i] = anyCase(order, ranks, types)
			}
			if err := put(); err != nil {
				return err
			}
			enqueue := func(s *weft.Stream) error {
				for _, o := range calls {
					if err := r.Do(ctx, s, o.call); err != nil {
						return err
					}
				}
				return nil
			}
			err := r.capture(enqueue, func(s *cuda.Stream, g *cuda.GraphExec) error {
				for replay := range times {
					if err := put(); err != nil {
						return err
					}
					for range 1 + order.IntN(3) { // the same again
						if err := g.Launch(s); err != nil {
							return err
						}
					}
					if err := r.comm.Wait(ctx, weft.StreamOf(s)); err != nil {
						return fmt.Errorf("replay %d: %w", replay, err)
					}
					for i, o := range calls {
						if err := r.verify(ctx, o); err != nil {
							return fmt.Errorf("replay %d, operation %d, %v: %w", replay, i, &o.gpuCase, err)
						}
					}
					if err := eager(); err != nil {
						return fmt.Errorf("after replay %d: %w", replay, err)
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

func TestGraphsOnEmulatedGPUs(t *testing.T) {
	times := 4
	if emulate.Everything() {
		times = 40
	}
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: []weft.DType{weft.BFloat16, weft.Int32}}
	onGPUs(t, emulatedKernels(t, 3), 3, o, replays(times))
}

// TestGraphsOnGPUs is the same on real ones.
func TestGraphsOnGPUs(t *testing.T) {
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: []weft.DType{weft.BFloat16, weft.Int32}}
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { onGPUs(t, ranktest.Real(t), ranks, o, replays(*soakReplays)) })
	}
}

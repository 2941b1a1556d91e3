package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// testPlaces has operands lie elsewhere on one rank than on the others: all refuse that, for peers reach them. Then
// they lie at the same place.
func testPlaces(t *testing.T, g *ranktest.GPUs) {
	f := build(t, plantest.TwoShot(2))
	run(t, g, 2, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
		p, err := r.Load(ctx, f)
		if err != nil {
			return err
		}
		first := r.comm.Rank() == 0
		odd := map[string]launchOf{
			"in a window on one rank": {dtype: weft.Float32, chunk: 64, window: first},
			"at different offsets":    {dtype: weft.Float32, chunk: 64, window: true, shift: 256 * r.comm.Rank()},
		}
		for _, name := range []string{"in a window on one rank", "at different offsets"} {
			l := odd[name]
			out, in, _, err := r.put(f, l, 1)
			if err != nil {
				return err
			}
			if err := p.Execute(ctx, nil, out, in); !errors.Is(err, weft.ErrMismatch) {
				return fmt.Errorf("operands %s: %w", name, err)
			}
			for n, window := range []bool{true, false} {
				l := launchOf{dtype: weft.Float32, chunk: 64, window: window, shift: 512}
				if err := r.launch(ctx, p, l, uint64(n)); err != nil {
					return fmt.Errorf("after operands %s: %w", name, err)
				}
			}
		}
		return nil
	})
}

func TestPlacesOnEmulatedGPUs(t *testing.T) { testPlaces(t, emulated(t, 2, 1)) }

// TestPlacesOnGPUs is the same on real ones.
func TestPlacesOnGPUs(t *testing.T) { testPlaces(t, ranktest.Real(t)) }

// TestResetOnEmulatedGPUs loads plans, gives them up, and loads them again, some with more blocks than the first.
func TestResetOnEmulatedGPUs(t *testing.T) {
	narrow, wide := build(t, plantest.TwoShot(2)), build(t, manyBlocks(2, 7))
	run(t, emulated(t, 2, 1), 2, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
		for n := range 3 {
			for _, f := range []*plan.File{narrow, wide} {
				p, err := r.Load(ctx, f)
				if err != nil {
					return err
				}
				l := launchOf{dtype: weft.Float32, chunk: 64, window: n%2 == 0}
				if err := r.launch(ctx, p, l, uint64(n)); err != nil {
					return err
				}
			}
			if err := r.Reset(); err != nil {
				return err
			}
			// No rank loads again before all have reset.
			if err := r.comm.Operations().VerifySame(ctx, "test", "", nil); err != nil {
				return err
			}
		}
		return nil
	})
}

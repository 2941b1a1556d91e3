package ep

import (
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft/ep"
)

// A kernel is tuned in what it has, and in nothing else.
func TestNeighboursArePossible(t *testing.T) {
	for _, tc := range []struct {
		shape                     Shape
		dispatchSlots, pullsSlots bool
	}{
		{small(nil), true, true},
		{small(exactFP8), true, true},
		{small(func(e *Shape) { e.Layout = "token-major" }), false, false},
		{small(func(e *Shape) { e.Layout, e.Weighting = "expert-packed", "weighted" }), false, true},
		{small(func(e *Shape) { e.Layout, e.Weighting, e.Reduction = "expert-packed", "weighted", "exact" }), false, false},
	} {
		var dispatch, combine [2]int // through slots, and direct
		count := func(of *[2]int, k ep.KernelTuning) {
			if k.Blocks != 0 || k.Bulk != 0 || k.Warps != 0 || k.Parts != 0 {
				of[1]++
			} else if k.Threads == 0 {
				of[0]++
			}
		}
		for _, isDispatch := range []bool{true, false} {
			for _, k := range tc.shape.neighbours(ep.KernelTuning{}, isDispatch) {
				s := tc.shape
				if isDispatch {
					s.Tuning.Dispatch = k
				} else {
					s.Tuning.Combine = k
				}
				s, ok := s.possible(2, ep.Tuning{})
				switch {
				case !ok:
				case isDispatch:
					count(&dispatch, s.Tuning.Dispatch)
				default:
					count(&combine, s.Tuning.Combine)
				}
			}
		}
		for _, of := range []struct {
			tried [2]int
			slots bool
		}{{dispatch, tc.dispatchSlots}, {combine, tc.pullsSlots}} {
			if (of.tried[0] > 10) != of.slots || (of.tried[1] > 10) == of.slots || (of.tried[0] > 0) == (of.tried[1] > 0) {
				t.Errorf("%s: %d through slots, %d direct", tc.shape.Contract(), of.tried[0], of.tried[1])
			}
		}
	}
}

// TestTuneOnEmulatedGPUs searches where times say nothing: whatever is found is possible, and every
// output is right.
func TestTuneOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels")
	}
	_, g := emulatedGPUs(t, 2)
	shapes := []Shape{
		small(nil), small(func(e *Shape) { e.Tokens = 5 }),
		small(func(e *Shape) { e.Layout, e.Hidden = "token-major", 1024 }),
	}
	if few() {
		shapes = shapes[2:]
	}
	var steps []float64
	found, err := g.Tune(t.Context(), shapes, func(done float64) { steps = append(steps, done) })
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(shapes) || !slices.IsSorted(steps) || len(steps) < 3 || steps[0] < 0 || steps[len(steps)-1] > 1 {
		t.Fatalf("%d found, steps %v", len(found), steps)
	}
	for _, f := range found {
		if len(f.Wrong) != 0 || f.Tried < 18 {
			t.Errorf("%s: %d tried, wrong: %v", f.Shape.Contract(), f.Tried, f.Wrong)
		}
		row, err := f.Row(ep.Hardware{GPU: "emulated", SMs: 16, Ranks: 2}, "test", time.Unix(0, 0))
		if err != nil {
			t.Error(err)
		}
		if row.Kind.Layout != f.Shape.Layout || row.Kind.MaxTokens != f.Shape.Tokens ||
			row.Date != "1970-01-01" || row.Tuning != f.Shape.Tuning {
			t.Errorf("%+v", row)
		}
		for _, of := range []ep.Gain{row.Dispatch, row.Combine} {
			if of.Chosen <= 0 || of.Tuned <= 0 || of.Tuned > of.Chosen {
				t.Errorf("%s: %+v", f.Shape.Contract(), row)
			}
		}
	}
}

package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft/ep"
)

// TestTuneOnEmulatedGPUs searches where times say nothing: whatever is found is possible, and every output is right.
func TestTuneOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels")
	}
	_, g := emulatedGPUs(t, 2)
	shapes := []EP{small(nil), small(func(e *EP) { e.Tokens = 5 })}
	var steps []int
	found, err := g.Tune(t.Context(), shapes, func(done, _ int) { steps = append(steps, done) })
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(shapes) || !slices.IsSorted(steps) || len(steps) < 3 {
		t.Fatalf("%d found, steps %v", len(found), steps)
	}
	for _, f := range found {
		if len(f.Wrong) != 0 || f.Tried < 20 {
			t.Errorf("%s: %d tried, wrong: %v", f.Shape.Contract(), f.Tried, f.Wrong)
		}
		row, err := f.Row(ep.Hardware{GPU: "emulated", SMs: 16, Ranks: 2}, "test", time.Unix(0, 0))
		if err != nil {
			t.Error(err)
		}
		if row.Kind.Layout != f.Shape.Layout || row.Kind.MaxTokens != f.Shape.Tokens || row.Date != "1970-01-01" || row.Tuning != f.Shape.Tuning {
			t.Errorf("%+v", row)
		}
		for _, of := range []ep.Gain{row.Dispatch, row.Combine} {
			if of.Chosen <= 0 || of.Tuned <= 0 || of.Tuned > of.Chosen {
				t.Errorf("%s: %+v", f.Shape.Contract(), row)
			}
		}
	}
}

package ep

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/internal/closer"
	"github.com/weftgo/weft/internal/matmul"
)

func TestOverlapOnEmulatedGPUs(t *testing.T) {
	shapes := []Shape{
		small(func(e *Shape) { e.Layout, e.SMs = "token-major", 6 }),
		small(func(e *Shape) { e.SMs = 3 }),
	}
	if few() {
		shapes = shapes[:1]
	}
	for _, gpus := range []int{2, 1} {
		_, g := emulatedGPUs(t, gpus)
		g.Ranks = 2
		var rows []OverlapRow
		o := Overlap{GPUs: g.GPUs, Product: matmul.Shape{Rows: 64, Columns: 128, Inner: 32}}
		if err := o.Measure(t.Context(), shapes,
			func(r OverlapRow) error { rows = append(rows, r); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(rows) != 2*len(shapes) {
			t.Fatalf("%d rows", len(rows))
		}
		for i, r := range rows {
			if !r.Verified || len(r.Problems) > 0 {
				t.Errorf("%s %s: %v", r.Contract, r.Op, r.Problems)
			}
			if r.Op != [2]string{"dispatch", "combine"}[i%2] || r.GPUs != gpus || r.Ranks != 2 ||
				r.GPUSMs != 16 || r.Product != "64x128x32" || r.SMs != shapes[i/2].SMs {
				t.Errorf("%+v", r)
			}
			if r.SMsUsed < 1 || r.SMsUsed > 16 || r.Share <= 1 || r.Alone <= 0 || r.Beside <= 0 ||
				r.ProductAlone <= 0 || r.ProductBeside <= 0 || r.TFlops <= 0 ||
				r.Slowdown != r.Beside/r.Alone || r.ProductSlowdown != r.ProductBeside/r.ProductAlone {
				t.Errorf("times: %+v", r)
			}
		}
	}
}

// What was wrong is in the row: here rows that stay as they were.
func TestOverlapChecksCatchErrors(t *testing.T) {
	_, g := emulatedGPUs(t, 1)
	g.Ranks = 1
	var err error
	if g.GPUs, err = g.WithDefaults(); err != nil {
		t.Fatal(err)
	}
	err = g.Run(t.Context(), func(ctx context.Context, of *timing.GPU) error {
		var c closer.Stack
		r := &overlapRank{gpuRank: g.rank(of)}
		m := r.gpuRank
		m.cfg = small(nil)
		if err := errors.Join(r.begin(ctx, matmul.Shape{Rows: 64, Columns: 64, Inner: 32}, &c),
			r.setUp(ctx, &c)); err != nil {
			return err
		}
		o := r.dispatches(ctx, timing.Bytes{})
		o.Renew = func(bool) error { m.salt++; return nil }
		row, err := r.overlap(ctx, o)
		if row.Verified || len(row.Problems) != 1 || !strings.HasPrefix(row.Problems[0], "dispatch: row") {
			t.Errorf("%v", row.Problems)
		}
		return errors.Join(err, c.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOverlapRefusals(t *testing.T) {
	_, g := emulatedGPUs(t, 1)
	o := Overlap{GPUs: g.GPUs, Product: matmul.Shape{Rows: 63, Columns: 64, Inner: 32}}
	if err := o.Measure(t.Context(), []Shape{small(nil)}, nil); err == nil ||
		!strings.Contains(err.Error(), "multiples of 64") {
		t.Error(err)
	}
	o.Product.Rows = 64
	if err := o.Measure(t.Context(), []Shape{small(func(e *Shape) { e.Tokens = 0 })}, nil); err == nil ||
		!strings.Contains(err.Error(), "tokens 0") {
		t.Error(err)
	}
	if err := (Overlap{}).Measure(t.Context(), nil, nil); err == nil {
		t.Error("no GPUs")
	}
}

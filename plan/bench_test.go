package plan_test

import (
	"fmt"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// BenchmarkVerify measures the largest plans: packets of 8 nodes of 8 ranks, of 29 blocks each, and rings, whose time
// should grow as operations times blocks do.
func BenchmarkVerify(b *testing.B) {
	type size struct {
		name string
		of   func() *plan.Plan
	}
	sizes := []size{{"hierarchical packets of 8x8 ranks", func() *plan.Plan { return plantest.Hierarchical(8, 8, 29, 1) }}}
	for _, n := range []int{64, 128, 256} {
		sizes = append(sizes, size{fmt.Sprintf("ring of %d", n), func() *plan.Plan { return plantest.Ring(n) }})
	}
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			f := build(b, s.of())
			blocks, ops := 0, 0
			for _, r := range f.Ranks {
				blocks += len(r.Blocks)
				for _, k := range r.Blocks {
					ops += len(k.Ops)
				}
			}
			for b.Loop() {
				for _, x := range plan.Verify(f).Findings {
					if x.Class != plan.Limits {
						b.Fatal(x)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(ops)/float64(blocks), "ns/op/block")
			b.ReportMetric(float64(ops), "operations")
		})
	}
}

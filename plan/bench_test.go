package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// BenchmarkVerify measures the largest plans: packets of 8 nodes of 8 ranks, of 29 blocks each, and rings, whose time
// should not grow faster than operations times blocks do. The table that it prints at the end has that growth, from
// each ring to the next one, by what processors worked: other work on the machine does not count.
func BenchmarkVerify(b *testing.B) {
	type size struct {
		name string
		of   func() *plan.Plan
	}
	sizes := []size{{"hierarchical packets of 8x8 ranks", func() *plan.Plan { return plantest.Hierarchical(8, 8, 29, 1) }}}
	for _, n := range []int{64, 128, 256} {
		sizes = append(sizes, size{fmt.Sprintf("ring of %d", n), func() *plan.Plan { return plantest.Ring(n) }})
	}
	table := "plan | operations | blocks | ms | processors, ms | ns an operation and block | growth"
	var last float64 // of the ring before
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
			begun := ranktest.CPUTime()
			for b.Loop() {
				for _, x := range plan.Verify(f).Findings {
					if x.Class != plan.Limits {
						b.Fatal(x)
					}
				}
			}
			took, worked := b.Elapsed()/time.Duration(b.N), (ranktest.CPUTime()-begun)/time.Duration(b.N)
			each := float64(worked.Nanoseconds()) / float64(ops) / float64(blocks)
			b.ReportMetric(each, "cpu-ns/op/block")
			b.ReportMetric(float64(worked.Microseconds())/1000, "cpu-ms")
			b.ReportMetric(float64(ops), "operations")
			table += fmt.Sprintf("\n%s | %d | %d | %.1f | %.1f | %.1f |", s.name, ops, blocks, took.Seconds()*1000,
				worked.Seconds()*1000, each)
			if strings.HasPrefix(s.name, "ring") {
				if last > 0 {
					table += fmt.Sprintf(" %.2f", each/last)
				}
				last = each
			}
		})
	}
	fmt.Println(table)
}

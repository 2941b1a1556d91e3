package executor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

// BenchmarkNative compares plans with the library's algorithms of the same protocol, in turns: the medians of 5 runs of
// each, through one group, and of what processors worked meanwhile for all ranks.
func BenchmarkNative(b *testing.B) {
	for _, ranks := range []int{2, 4} {
		for _, pair := range []struct {
			native string
			file   *plan.File
		}{
			{"all-gather/pull", build(b, plantest.Pulled(ranks))},
			{"all-reduce/window", build(b, plantest.TwoShotApart(ranks))},
			{"all-reduce/pull", build(b, plantest.OneShotApart(ranks))},
		} {
			for _, bytes := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
				b.Run(fmt.Sprintf("%s/%d ranks/%d KiB", pair.native, ranks, bytes>>10), func(b *testing.B) {
					native, planned := interleaved(b, ranks, pair.native, pair.file, bytes)
					b.ReportMetric(float64(native.took.Nanoseconds())/1000, "native-us")
					b.ReportMetric(float64(planned.took.Nanoseconds())/1000, "plan-us")
					b.ReportMetric(float64(planned.took)/float64(native.took), "ratio")
					b.ReportMetric(float64(planned.worked)/float64(max(native.worked, 1)), "cpu-ratio")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// spent is the time of an operation, and what processors worked in it.
type spent struct{ took, worked time.Duration }

// interleaved is what an operation takes by the library and by a plan.
func interleaved(b *testing.B, ranks int, native string, f *plan.File, bytes int) (by, of spent) {
	const turns = 5
	var took, worked [2][]time.Duration
	err := ranktest.Run(ranks, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		g, err := groupOf(ctx, c, collective.Options{}, f)
		if err != nil {
			return err
		}
		rank := &f.Ranks[c.Rank()]
		chunks := rank.Input
		if f.Collective == spec.AllGather {
			chunks = rank.Output
		}
		chunk := bytes / chunks &^ 63
		in, out, size := f.Place(c.Rank(), chunk)
		w, err := c.Alloc(ctx, size)
		if err != nil {
			return err
		}
		names := []string{native, native[:strings.Index(native, "/")] + "/plan/" + f.Name}
		call := collective.Call{
			Collective: collective.AllReduce, In: tensor(w.Bytes()[in:][:rank.Input*chunk], weft.Float32),
			Out: tensor(w.Bytes()[out:][:rank.Output*chunk], weft.Float32),
		}
		if f.Collective == spec.AllGather {
			call.Collective = collective.AllGather
		}
		times := max(3, min(20000, 32<<20/bytes))
		for turn := range turns + 1 {
			for i, name := range names {
				call.Algorithm = name
				if err := g.Barrier(ctx, nil); err != nil {
					return err
				}
				begun, idle := time.Now(), ranktest.CPUTime()
				for range times {
					if err := g.Do(ctx, nil, call); err != nil {
						return err
					}
				}
				if err := g.Barrier(ctx, nil); err != nil {
					return err
				}
				if c.Rank() == 0 && turn > 0 {
					took[i] = append(took[i], time.Since(begun)/time.Duration(times))
					worked[i] = append(worked[i], (ranktest.CPUTime()-idle)/time.Duration(times))
				}
			}
		}
		return g.Close()
	})
	if err != nil {
		b.Fatal(err)
	}
	for i := range took {
		slices.Sort(took[i])
		slices.Sort(worked[i])
	}
	return spent{took[0][turns/2], worked[0][turns/2]}, spent{took[1][turns/2], worked[1][turns/2]}
}

// BenchmarkFirst is the time in which ranks load, verify and launch a plan for the first time: the median of those of
// ten plans, and what processors worked for one of them, on all ranks.
func BenchmarkFirst(b *testing.B) {
	for name, p := range map[string]func() *plan.Plan{
		"two-shot of 8": func() *plan.Plan { return plantest.TwoShot(8) },
		"packets of 8":  func() *plan.Plan { return plantest.TwoPhasePackets(8) },
		"ring of 8":     func() *plan.Plan { return plantest.Ring(8) },
	} {
		b.Run(name, func(b *testing.B) {
			f := build(b, p())
			const plans = 10
			var took, worked []time.Duration
			err := ranktest.Run(8, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
				x, err := executor.New(ctx, c, executor.Options{})
				if err != nil {
					return err
				}
				in, out, size := f.Place(c.Rank(), 1024)
				region := make([]byte, size)
				rank := &f.Ranks[c.Rank()]
				for i := range plans {
					if err := c.Operations().VerifySame(ctx, "meet", "", nil); err != nil {
						return err
					}
					another := *f
					another.Name = fmt.Sprint(b.N, i) // nothing is known of it
					begun, idle := time.Now(), ranktest.CPUTime()
					p, err := x.Load(ctx, &another)
					if err != nil {
						return err
					}
					err = p.Execute(ctx, nil, tensor(region[out:][:1024*rank.Output], weft.Float32),
						tensor(region[in:][:1024*rank.Input], weft.Float32))
					if err != nil {
						return err
					}
					if c.Rank() == 0 {
						took = append(took, time.Since(begun))
						worked = append(worked, ranktest.CPUTime()-idle)
					}
				}
				return x.Close()
			})
			if err != nil {
				b.Fatal(err)
			}
			slices.Sort(took)
			slices.Sort(worked)
			b.ReportMetric(float64(took[plans/2].Microseconds())/1000, "ms")
			b.ReportMetric(float64(worked[plans/2].Microseconds())/1000, "cpu-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

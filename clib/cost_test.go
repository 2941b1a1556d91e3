package main_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
)

// goCosts are the calls of testdata/cost.c as Go makes them, in nanoseconds, measured in the same
// way.
func goCosts(t testing.TB) map[string]float64 {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	comm, err := weft.Join(ctx)
	must(err)
	defer comm.Close()
	h, err := ep.NewHandle(ctx, comm, ep.Spec{Experts: 2, TopK: 1, Hidden: 4, MaxTokens: 1, Payload: ep.FP32})
	must(err)
	defer h.Close()
	group, err := collective.New(ctx, comm, collective.Options{})
	must(err)
	defer group.Close()
	routing, err := h.Prepare(ctx, nil, weft.TensorOf([]int32{1}, 1, 1), weft.TensorOf([]float32{1}, 1, 1))
	must(err)
	rows, out := ep.Rows{Data: weft.TensorOf([]float32{1, 2, 3, 4}, 1, 4)}, weft.TensorOf(make([]float32, 4), 1, 4)
	got, err := h.Dispatch(ctx, nil, ep.DispatchArgs{Routing: routing, Rows: rows})
	must(err)

	costs := map[string]float64{}
	measure := func(name string, f func() error) {
		const calls = 5000
		best := time.Hour
		for range 30 {
			start := time.Now()
			for range calls {
				if err := f(); err != nil {
					t.Fatal(err)
				}
			}
			best = min(best, time.Since(start))
		}
		costs[name] = float64(best.Nanoseconds()) / calls
	}
	measure("error", comm.Err)
	measure("barrier", func() error { return group.Barrier(ctx, nil) })
	measure("combine", func() error {
		return h.Combine(ctx, nil, ep.CombineArgs{Routing: routing, Rows: got.Data, Out: out})
	})
	got.Release()
	measure("dispatch+release", func() error {
		got, err := h.Dispatch(ctx, nil, ep.DispatchArgs{Routing: routing, Rows: rows})
		if err == nil {
			got.Release()
		}
		return err
	})
	return costs
}

// What a call costs from C, in Go, and over the call of Go that it makes: docs/benchmarks/faces.md has a
// table.
func BenchmarkCost(b *testing.B) {
	program := compile(b, "testdata/cost.c")
	for b.Loop() {
		in := goCosts(b)
		for line := range strings.Lines(run(b, program)) {
			var name string
			var ns float64
			if _, err := fmt.Sscanf(line, "%s %f", &name, &ns); err != nil {
				b.Fatalf("%v in %q", err, line)
			}
			calls := 1 + strings.Count(name, "+")
			b.Logf("%-16s from C %6.1f ns, in Go %6.1f ns, %5.1f ns more a call", name, ns, in[name],
				(ns-in[name])/float64(calls))
		}
	}
}

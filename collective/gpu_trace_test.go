package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/tracetest"
	"github.com/weftgo/weft/trace"
)

// TestTraceOnEmulatedGPUs: of collectives of every way of moving data, arrivals come behind what signalled them, and
// operations nest.
func TestTraceOnEmulatedGPUs(t *testing.T) { testTrace(t, emulatedGPUs(t, 3), true) }

// TestTraceOnGPUs is the same of ranks that share a GPU, and with it a clock, or have one each.
func TestTraceOnGPUs(t *testing.T) { testTrace(t, ranktest.Real(t), false) }

func testTrace(t *testing.T, g *ranktest.GPUs, sameTime bool) {
	const ranks = 3
	dir := t.TempDir()
	t.Setenv(weft.TraceVariable, dir)
	cases := []gpuCase{
		{kind: AllReduce, dtype: weft.BFloat16, op: weft.Sum, count: 256, name: "all-reduce/one-shot"},
		{kind: AllReduce, dtype: weft.BFloat16, op: weft.Sum, count: 31, name: "all-reduce/one-shot"},
		{kind: AllReduce, dtype: weft.BFloat16, op: weft.Sum, count: 768, name: "all-reduce/two-shot"},
		{kind: AllReduce, dtype: weft.BFloat16, op: weft.Sum, count: 5001, name: "all-reduce/two-shot"},
		{kind: AllGather, dtype: weft.BFloat16, count: 64},
		{kind: AllToAll, dtype: weft.BFloat16, count: 300, shift: 1},
		{kind: Broadcast, dtype: weft.BFloat16, count: 100, root: 1},
		{kind: Barrier},
	}
	t.Run("run", func(t *testing.T) { // the files are whole when its ranks have left
		onGPUs(t, g, ranks, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context,
			r *gpuRank,
		) error {
			for i, c := range cases {
				for range 2 { // plain forms come behind an operation in which all have heard from all
					if err := r.check(ctx, c); err != nil {
						return fmt.Errorf("call %d, %v: %w", i, &c, err)
					}
				}
			}
			return nil
		})
	})
	files, err := trace.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := tracetest.Check(files, sameTime)
	if err != nil {
		t.Fatal(err)
	}
	a, err := trace.Align(files)
	if err != nil {
		t.Fatal(err)
	}
	if a.Backward != 0 {
		t.Errorf("%d arrows point backwards: %+v", a.Backward, a.Clocks)
	}
	if n := seen.Operations["all-reduce"]; n != 8*ranks {
		t.Errorf("%d all-reduces, want 8 of each rank", n)
	}
	// Each operation has an arrival of each pair at the least, all-reduces in two steps two; a broadcast may have one.
	if least := 14 * ranks * (ranks - 1); seen.Arrows < least || seen.Sites[trace.Reduced] == 0 {
		t.Errorf("%d arrows, want %d or more; sites %v", seen.Arrows, least, seen.Sites)
	}
}

package ep_test

import (
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/tracetest"
	"github.com/weftgo/weft/trace"
)

// TestTraceOnEmulatedGPUs: of dispatches and combines through slots and straight to final rows, in one call and in two
// halves, arrivals come behind what signalled them, and operations nest.
func TestTraceOnEmulatedGPUs(t *testing.T) {
	const ranks = 2
	dir := t.TempDir()
	t.Setenv(weft.TraceVariable, dir)
	t.Run("run", func(t *testing.T) { // the files are whole when its ranks have left
		e := tornMachine(t).engine(t, ranks, gpuDeadline)
		for _, way := range ways {
			if !slices.Contains([]string{"value", "flag", "packed"}, way.name) {
				continue
			}
			for _, split := range []bool{false, true} {
				c := evenly(sized(way.spec, ranks), ranks, 1, 5)
				c.Fused, c.Split = !split, split
				if err := e.Ranks(ranks, func(comm *weft.Comm) error { return c.Do(e, comm) }); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	files, err := trace.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := tracetest.Check(files, true)
	if err != nil {
		t.Fatal(err)
	}
	if seen.Operations["dispatch"] < 6*ranks || seen.Operations["combine"] < 6*ranks {
		t.Errorf("operations %v", seen.Operations)
	}
	for _, site := range []trace.Site{trace.Pushed, trace.Reduced, trace.Counted, trace.Placed, trace.Routed} {
		if seen.Sites[site] == 0 {
			t.Errorf("no event %v in %v", site, seen.Sites)
		}
	}
	if seen.Arrows < 12*ranks*(ranks-1) {
		t.Errorf("%d arrows", seen.Arrows)
	}
}

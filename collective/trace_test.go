package collective

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/trace"
)

// traced runs calls on traced ranks, closes them, and gives their trace.
func traced(t *testing.T, j *job, dir string, calls int, late func(rank, call int)) *trace.Trace {
	t.Helper()
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		in, out := make([]float32, 5000), make([]float32, 5000)
		for call := range calls {
			late(r, call)
			if err := groups[r].Barrier(ctx, nil); err != nil {
				return err
			}
			if err := groups[r].AllReduce(ctx, nil, weft.TensorOf(out, 5000), weft.TensorOf(in, 5000), weft.Sum); err != nil {
				return err
			}
		}
		return nil
	})
	if err := ranktest.Close(j.comms); err != nil {
		t.Fatal(err)
	}
	return aligned(t, dir)
}

func aligned(t *testing.T, dir string) *trace.Trace {
	t.Helper()
	files, err := trace.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := trace.Align(files)
	if err != nil {
		t.Fatal(err)
	}
	if a.Backward != 0 {
		t.Fatalf("%d of %d arrows point backwards, by up to %d ns", a.Backward, a.Arrows, a.Worst)
	}
	return a
}

// every checks that each rank sees each other in each call.
func every(t *testing.T, a *trace.Trace, ranks, calls int) *trace.Summary {
	t.Helper()
	s := a.Summarise()
	if len(s.Unfinished) != 0 || s.Lost != 0 || s.Overwritten != nil || s.Cut != nil || len(s.Operations) != 2 {
		t.Fatalf("%+v", s)
	}
	for _, o := range s.Operations {
		if o.Calls != calls || len(o.Ranks) != ranks || o.P50 <= 0 {
			t.Errorf("%+v", o)
		}
	}
	for _, l := range a.Lanes {
		for _, track := range l.Tracks {
			seen := map[int16]map[uint64]bool{}
			for _, e := range track.Events {
				if e.Site == trace.Arrived {
					if seen[e.Peer] == nil {
						seen[e.Peer] = map[uint64]bool{}
					}
					seen[e.Peer][e.Epoch] = true
				}
			}
			for p := range int16(ranks) {
				want := 2 * calls
				if int(p) == track.Rank {
					want = 0
				}
				if len(seen[p]) != want {
					t.Errorf("rank %d sees rank %d in %d operations, want %d", track.Rank, p, len(seen[p]), want)
				}
			}
		}
	}
	return s
}

// TestTraceNamesTheLate: the rank that calls late is the one that the summary names.
func TestTraceNamesTheLate(t *testing.T) {
	dir := t.TempDir()
	const calls = 20
	a := traced(t, newJob(t, 4, weft.WithTrace(dir)), dir, calls, func(rank, _ int) {
		if rank == 2 {
			time.Sleep(3 * time.Millisecond)
		}
	})
	s := every(t, a, 4, calls)
	if len(a.Clocks) != 1 {
		t.Errorf("%d clocks", len(a.Clocks))
	}
	for _, o := range s.Operations {
		if late := o.Ranks[2]; o.Name == "barrier" && (late.Last < calls*3/4 || late.AtCall < calls/2) {
			t.Errorf("%+v", o)
		}
	}
}

// TestTraceAcrossHosts: what ranks of other hosts say arrives, and clocks that are the same come out so.
func TestTraceAcrossHosts(t *testing.T) {
	dir := t.TempDir()
	const calls = 20
	j, _ := newSpan(t, "aabb", twin(t, fabrictest.TCP(), 7).Open, weft.WithTrace(dir))
	a := traced(t, j, dir, calls, func(int, int) {})
	every(t, a, 4, calls)
	if len(a.Clocks) != 2 {
		t.Fatalf("%d clocks", len(a.Clocks))
	}
	// Both hosts are this one. Bounds are the times of messages, so the error is below them.
	if c := a.Clocks[1]; c.Within < 0 || max(c.Ahead, -c.Ahead) > c.Within {
		t.Errorf("%+v", c)
	}
}

// TestTraceOfFailure: the last events before the deadline say who never called.
func TestTraceOfFailure(t *testing.T) {
	dir := t.TempDir()
	j := newJob(t, 3, weft.WithTrace(dir), weft.WithDeadline(200*time.Millisecond))
	groups := j.group(t, Options{})
	eachRank(t, []int{0, 1, 2}, func(ctx context.Context, r int) error {
		if err := groups[r].Barrier(ctx, nil); err != nil {
			return err
		}
		if r == 1 {
			return nil
		}
		if err := groups[r].Barrier(ctx, nil); !errors.Is(err, weft.ErrTimeout) {
			return err
		}
		return nil
	})
	s := aligned(t, dir).Summarise() // nothing has been closed
	if len(s.Unfinished) != 1 || s.Unfinished[0].String() !=
		"barrier 2 of group 1 host did not end on ranks 0, 2: rank 1 recorded nothing of it" {
		t.Fatalf("%+v", s.Unfinished)
	}
}

// BenchmarkTrace is a barrier whose rank is alone, so that nothing is waited for: what recording costs.
func BenchmarkTrace(b *testing.B) {
	for _, on := range []bool{false, true} {
		name, dir := "off", ""
		if on {
			name, dir = "on", b.TempDir()
		}
		b.Run(name, func(b *testing.B) {
			group := newJob(b, 1, weft.WithTrace(dir)).group(b, Options{})[0]
			for b.Loop() {
				if err := group.Barrier(context.Background(), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

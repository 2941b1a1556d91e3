package host

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// paced is a pace and what it is told of a write: how many microseconds its 8000 bytes took.
func paced(p *pace, us int) {
	const n = 8000
	start, _ := p.begin(n)
	if !start.IsZero() {
		p.timed(n, time.Duration(us)*time.Microsecond)
	}
}

// TestPace: two slow writes in a row send what follows past the caches, one fast one brings it
// back, and few are timed.
func TestPace(t *testing.T) {
	const fast, slow = 1, 2 // against 8000 bytes per microsecond
	p := &pace{enough: 8000}
	timed := func() bool {
		start, _ := p.begin(pacedBytes)
		return !start.IsZero()
	}
	skip := func(n int, past bool) {
		t.Helper()
		for i := range n {
			if start, is := p.begin(pacedBytes); !start.IsZero() || is != past {
				t.Fatalf("write %d of %d: timed %t, past the caches %t", i, n, !start.IsZero(), is)
			}
		}
		if !timed() {
			t.Fatalf("not timed after %d writes", n)
		}
	}
	paced(p, fast)
	skip(timeOften, false)
	paced(p, slow) // it may have been interrupted
	if p.past || !timed() {
		t.Error("after one slow write the next is not timed")
	}
	paced(p, fast)
	skip(timeOften, false)
	paced(p, slow)
	paced(p, slow)
	skip(timeSeldom, true)
	paced(p, slow) // still
	skip(timeSeldom, true)
	paced(p, fast)
	skip(timeOften, false)

	p = &pace{enough: 8000, past: true, wait: 3}
	if start, past := p.begin(pacedBytes - 1); !start.IsZero() || past || p.wait != 3 {
		t.Error("a short write is timed, goes past the caches, or counts")
	}
}

// TestPacesAgree: ranks that find every write slow, or every write fast, go their ways, and their
// results are the same.
func TestPacesAgree(t *testing.T) {
	const ranks, count = 3, 200_001
	for _, past := range []bool{false, true} {
		j := newJob(t, ranks, 256<<10, "all-reduce/two-shot")
		for _, e := range j.engines {
			for _, p := range []*pace{&e.call.staging, &e.call.sharing} {
				p.enough = 0
				if past {
					p.enough = math.MaxInt64 / int64(time.Hour)
				}
			}
		}
		j.must(t, func(ctx context.Context, r int) error {
			in, out, want := make([]int32, count), make([]int32, count), make([]int32, count)
			for i := range in {
				in[i] = int32(i * (r + 1))
				want[i] = int32(i * ranks * (ranks + 1) / 2)
			}
			e := j.engines[r]
			c := &spec.Call{Collective: spec.AllReduce, Out: weft.TensorOf(out), In: weft.TensorOf(in)}
			if err := e.Begin("test"); err != nil {
				return err
			}
			_, err := e.Run(ctx, nil, c, c.Check(r, ranks))
			if err == nil && !slices.Equal(out, want) {
				t.Errorf("past the caches %t: rank %d has another sum", past, r)
			}
			return err
		})
		for r, e := range j.engines {
			if e.call.staging.past != past || e.call.sharing.past != past {
				t.Errorf("rank %d stages past the caches: %t, shares: %t, want %t", r, e.call.staging.past,
					e.call.sharing.past, past)
			}
		}
	}
}

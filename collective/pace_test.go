package collective

import (
	"bytes"
	"context"
	"math"
	"testing"
	"time"

	"github.com/weftgo/weft"
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

// TestPacesAgree: groups whose ranks find every write slow, or every write fast, go their ways, and
// their results are the same.
func TestPacesAgree(t *testing.T) {
	const count = 200_001
	j := newJob(t, 3)
	s := shape{dtype: weft.Float32, count: count, seed: 5}
	want := reference(weft.Sum, s.dtype, [][]byte{s.input(0), s.input(1), s.input(2)})
	for _, past := range []bool{false, true} {
		groups := j.group(t, Options{Scratch: 256 << 10, Force: []string{"all-reduce/two-shot"}})
		for _, g := range groups {
			for _, p := range []*pace{&g.call.staging, &g.call.sharing} {
				p.enough = 0
				if past {
					p.enough = math.MaxInt64 / int64(time.Hour)
				}
			}
		}
		j.must(t, func(ctx context.Context, r int) error {
			out := make([]byte, len(want))
			err := groups[r].AllReduce(ctx, nil, weft.TensorAt(out, s.dtype, count),
				weft.TensorAt(s.input(r), s.dtype, count), weft.Sum)
			if err == nil && !bytes.Equal(out, want) {
				t.Errorf("past the caches %t: rank %d differs from the loop", past, r)
			}
			return err
		})
		for r, g := range groups {
			if g.call.staging.past != past || g.call.sharing.past != past {
				t.Errorf("rank %d stages past the caches: %t, shares: %t, want %t", r, g.call.staging.past,
					g.call.sharing.past, past)
			}
		}
	}
}

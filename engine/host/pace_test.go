package host

import (
	"testing"
	"time"
)

// paced is a pace and what it is told of a write: how many microseconds its 8000 bytes took.
func paced(p *Pace, us int) {
	const n = 8000
	start, _ := p.Begin(n)
	if !start.IsZero() {
		p.timed(n, time.Duration(us)*time.Microsecond)
	}
}

// TestPace: two slow writes in a row send what follows past the caches, one fast one brings it
// back, and few are timed.
func TestPace(t *testing.T) {
	const fast, slow = 1, 2 // against 8000 bytes per microsecond
	p := &Pace{Enough: 8000}
	timed := func() bool {
		start, _ := p.Begin(pacedBytes)
		return !start.IsZero()
	}
	skip := func(n int, past bool) {
		t.Helper()
		for i := range n {
			if start, is := p.Begin(pacedBytes); !start.IsZero() || is != past {
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

	p = &Pace{Enough: 8000, past: true, wait: 3}
	if start, past := p.Begin(pacedBytes - 1); !start.IsZero() || past || p.wait != 3 {
		t.Error("a short write is timed, goes past the caches, or counts")
	}
}

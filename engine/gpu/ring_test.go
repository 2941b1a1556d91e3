package gpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
)

func take(t *testing.T, r *Ring, want int) {
	t.Helper()
	if got, err := r.Take("test"); err != nil || got != want {
		t.Fatalf("buffer %d (%v), want %d", got, err, want)
	}
}

func refused(t *testing.T, r *Ring, why string) {
	t.Helper()
	if _, err := r.Take("test"); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), why) {
		t.Fatalf("%v, want an error of %q", err, why)
	}
}

// TestRing: any free buffer will do, and peers are told of none.
func TestRing(t *testing.T) {
	r := NewRing(engine.NewBuffers(2), false)
	take(t, r, 0)
	r.Keep(0, 0)
	take(t, r, 1)
	r.Keep(1, 0)
	refused(t, r, "all memory")
	r.buffers.Put(0)
	take(t, r, 0)
	if got := r.Free(0); got != 0 {
		t.Errorf("peers are told that %b are free", got)
	}
}

// TestOrderedRing: buffers are taken in turn, whatever else is free.
func TestOrderedRing(t *testing.T) {
	r := NewRing(engine.NewBuffers(3), true)
	for i := range 2 {
		take(t, r, i)
		r.Keep(i, 0)
	}
	if got := r.Free(0); got != 0b100 {
		t.Errorf("%b are free, want the last", got)
	}
	r.buffers.Put(1)
	take(t, r, 2)
	r.buffers.Put(2) // the operation was refused: the turn is the same
	take(t, r, 2)
	r.Keep(2, 0)
	refused(t, r, "whose turn it is")
	r.buffers.Put(0)
	take(t, r, 0)
	refused(t, r, "whose turn it is")
}

// TestRingInCapture: a capture says only of buffers that they are free which it took itself.
func TestRingInCapture(t *testing.T) {
	const capture = 7
	r := NewRing(engine.NewBuffers(2), true)
	if got := r.Free(capture); got != 0 {
		t.Errorf("%b are free before the capture took any", got)
	}
	take(t, r, 0)
	r.Keep(0, capture)
	r.buffers.Put(0)
	if got := r.Free(capture); got != 0b01 {
		t.Errorf("%b are free, want the one that the capture took", got)
	}
	if got := r.Free(capture + 1); got != 0 {
		t.Errorf("%b are free for another capture", got)
	}
	r.restart(3)
	if got := r.Free(capture); got != 0 {
		t.Errorf("%b are free after the turn began anew", got)
	}
	take(t, r, 1)
}

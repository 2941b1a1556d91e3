package host

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	enginehost "github.com/weftgo/weft/engine/host"
)

// TestPeerBounds: an operand of a peer is read only if it lies in its window.
func TestPeerBounds(t *testing.T) {
	const n = 4096
	j := newJob(t, 2, scratchBytes)
	windows := make([]*weft.Window, 2)
	j.must(t, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, n)
		return err
	})
	c, id := &j.engines[0].call, windows[0].ID()
	enter := func() {
		t.Helper()
		if err := c.Begin("test"); err != nil {
			t.Fatal(err)
		}
	}
	enter()
	for _, good := range []struct{ offset, n int }{{0, n}, {0, 0}, {n, 0}, {n - 1, 1}, {1, n - 1}, {64, 64}} {
		mem, err := c.peer(1, enginehost.OperandRef{Window: id, Offset: uint64(good.offset)}, good.n)
		want := windows[0].Peer(1)[good.offset:][:good.n]
		if err != nil || len(mem) != good.n || cap(mem) != good.n || unsafe.SliceData(mem) != unsafe.SliceData(want) {
			t.Errorf("%+v: %d bytes, room for %d, error %v", good, len(mem), cap(mem), err)
		}
	}
	bad := []struct {
		window, offset uint64
		n              int
		want           string
	}{
		{id, 0, n + 1, "ends behind"},
		{id, 1, n, "ends behind"},
		{id, n, 1, "ends behind"},
		{id, math.MaxUint64, 1, "ends behind"},
		{id, math.MaxUint64 - n + 2, n, "ends behind"},
		{id, 1 << 63, 1, "ends behind"},
		{0, 0, 1, "ends behind"},
		{id + 1, 0, 1, "closed"},
		{math.MaxUint64, 0, 0, "closed"},
	}
	for _, b := range bad {
		ref := enginehost.OperandRef{Window: b.window, Offset: b.offset}
		if mem, err := c.peer(1, ref, b.n); err == nil || mem != nil || !strings.Contains(err.Error(),
			b.want) {
			t.Errorf("%+v: %d bytes, error %v", b, len(mem), err)
		}
		// The others were told; and a rank that knows of a failure returns that one, not what it
		// made of the operand.
		for r, comm := range j.comms {
			if err := comm.Err(); !errors.Is(err, weft.ErrAborted) {
				t.Errorf("%+v: rank %d knows of %v", b, r, err)
			}
		}
		if _, err := c.peer(1, ref, b.n); !errors.Is(err, weft.ErrAborted) {
			t.Errorf("%+v: after a failure: %v", b, err)
		}
		j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
		enter()
	}
}

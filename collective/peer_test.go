package collective

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/weftgo/weft"
)

// broadcastIn broadcasts rank 0's operand, which is large enough to be read where it lies.
func broadcastIn(ctx context.Context, g *Group, mem []byte) error {
	return g.Broadcast(ctx, nil, weft.TensorAt(mem, weft.Uint8, len(mem)), 0)
}

// TestClosedWindow: a rank that has closed the window of an operand fails, the others hear of it,
// and none of them takes it for a refusal after which the group goes on by itself.
func TestClosedWindow(t *testing.T) {
	const ranks, n = 3, 1 << 20
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	operands := make([][]byte, ranks)
	j.must(t, func(ctx context.Context, r int) error {
		w, err := j.comms[r].Alloc(ctx, n)
		if err != nil {
			return err
		}
		operands[r] = w.Bytes()
		if r == 1 {
			operands[r] = make([]byte, n)
			return w.Close()
		}
		return nil
	})
	for r, err := range j.each(t, func(ctx context.Context,
		r int,
	) error {
		return broadcastIn(ctx, groups[r], operands[r])
	}) {
		peer, blames := errors.AsType[*weft.PeerError](err)
		switch {
		case errors.Is(err, weft.ErrMismatch), errors.Is(err, weft.ErrInvalid), errors.Is(err, weft.ErrUnsupported):
			t.Errorf("rank %d returns what counts as a refusal: %v", r, err)
		case r == 1 && !errors.Is(err, weft.ErrClosed):
			t.Errorf("the rank that has closed the window returns %v", err)
		case r != 1 && (!blames || peer.Rank != 1 || !errors.Is(err, weft.ErrAborted)):
			t.Errorf("rank %d returns %v", r, err)
		}
	}
	for r, err := range j.each(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) }) {
		if !errors.Is(err, weft.ErrAborted) {
			t.Errorf("rank %d: the failure does not last: %v", r, err)
		}
	}
	j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
	j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
}

// TestWindowOfFewer: an operand in a window that was made while a rank was masked is staged once
// that rank is back.
func TestWindowOfFewer(t *testing.T) {
	const ranks, n, masked = 3, 1 << 20, 2
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	operands := make([][]byte, ranks)
	j.must(t, func(ctx context.Context, r int) error {
		operands[r] = make([]byte, n)
		if r == masked {
			return nil
		}
		if err := j.comms[r].SetMask(ctx, masked); err != nil {
			return err
		}
		w, err := j.comms[r].Alloc(ctx, n)
		if err == nil {
			operands[r] = w.Bytes()
		}
		return err
	})
	j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
	want := bytes.Repeat([]byte("weft"), n/4)
	copy(operands[0], want)
	j.must(t, func(ctx context.Context, r int) error { return broadcastIn(ctx, groups[r], operands[r]) })
	for r, got := range operands {
		if !bytes.Equal(got, want) {
			t.Errorf("rank %d has something else", r)
		}
	}
}

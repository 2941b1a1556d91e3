package collective

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/engine/host"

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

// TestPeerBounds: an operand of a peer is read only if it lies in its window.
func TestPeerBounds(t *testing.T) {
	const n = 4096
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	windows := make([]*weft.Window, 2)
	j.must(t, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, n)
		return err
	})
	c, id := &groups[0].call, windows[0].ID()
	enter := func() {
		t.Helper()
		if err := c.Begin("test"); err != nil {
			t.Fatal(err)
		}
	}
	enter()
	for _, good := range []struct{ offset, n int }{{0, n}, {0, 0}, {n, 0}, {n - 1, 1}, {1, n - 1}, {64, 64}} {
		mem, err := c.peer(1, host.OperandRef{Window: id, Offset: uint64(good.offset)}, good.n)
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
		if mem, err := c.peer(1, host.OperandRef{Window: b.window, Offset: b.offset}, b.n); err == nil || mem != nil ||
			!strings.Contains(err.Error(), b.want) {
			t.Errorf("%+v: %d bytes, error %v", b, len(mem), err)
		}
		// The others were told; and a rank that knows of a failure returns that one, not what it
		// made of the operand.
		for r, comm := range j.comms {
			if err := comm.Err(); !errors.Is(err, weft.ErrAborted) {
				t.Errorf("%+v: rank %d knows of %v", b, r, err)
			}
		}
		if _, err := c.peer(1, host.OperandRef{Window: b.window, Offset: b.offset}, b.n); !errors.Is(err, weft.ErrAborted) {
			t.Errorf("%+v: after a failure: %v", b, err)
		}
		j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
		enter()
	}
}

// FuzzCall compares calls with what a peer may say: errors can be printed.
func FuzzCall(f *testing.F) {
	f.Add(uint64(0), uint64(0))
	f.Add(uint64(AllReduce)<<kindShift|uint64(7)<<opShift|uint64(31)<<dtypeShift|maxElems, uint64(math.MaxUint64))
	f.Add(uint64(Broadcast)<<kindShift|uint64(63)<<rootShift, uint64(31)<<kindShift)
	f.Fuzz(func(t *testing.T, own, peer uint64) {
		words := differs(own, peer)
		if a, b, ok := strings.Cut(words, ", this rank "); !ok || !strings.HasPrefix(a, "it calls ") || b == "" ||
			len(words) > host.RefusalBytes {
			t.Fatalf("%#x against %#x: %q", own, peer, words)
		}
	})
}

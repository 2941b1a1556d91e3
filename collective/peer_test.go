package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft"
)

// broadcastIn broadcasts rank 0's operand, which is large enough to be read where it stands.
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

// TestPeerBounds: a place that a peer names is used only if it lies in its window.
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
		if err := c.Sync("test"); err != nil {
			t.Fatal(err)
		}
	}
	enter()
	for _, good := range []struct{ offset, n int }{{0, n}, {0, 0}, {n, 0}, {n - 1, 1}, {1, n - 1}, {64, 64}} {
		mem, err := c.peer(1, id, uint64(good.offset), good.n)
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
		{id, 0, n + 1, "ends before"},
		{id, 1, n, "ends before"},
		{id, n, 1, "ends before"},
		{id, n + 1, 0, "ends before"},
		{id, math.MaxUint64, 1, "ends before"},
		{id, math.MaxUint64 - n + 2, n, "ends before"},
		{id, 1 << 63, 0, "ends before"},
		{0, 0, 1, "closed"},
		{id + 1, 0, 1, "closed"},
		{math.MaxUint64, 0, 0, "closed"},
	}
	for _, b := range bad {
		if mem, err := c.peer(1, b.window, b.offset, b.n); err == nil || mem != nil ||
			!strings.Contains(err.Error(), b.want) {
			t.Errorf("%+v: %d bytes, error %v", b, len(mem), err)
		}
		// The others were told; and a rank that knows of a failure returns that one, not what it
		// made of the place.
		for r, comm := range j.comms {
			if err := comm.Err(); !errors.Is(err, weft.ErrAborted) {
				t.Errorf("%+v: rank %d knows of %v", b, r, err)
			}
		}
		if _, err := c.peer(1, b.window, b.offset, b.n); !errors.Is(err, weft.ErrAborted) {
			t.Errorf("%+v: after a failure: %v", b, err)
		}
		j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
		enter()
	}
}

// FuzzSlot reads a slot as a peer may have left it: whatever is in there, nothing outside the
// peer's memory is read, and errors can be printed.
func FuzzSlot(f *testing.F) {
	const size = 1 << 12
	near := func(words ...uint64) []byte {
		var b []byte
		for _, w := range words {
			for i := range 8 {
				b = append(b, byte(w>>(8*i)))
			}
		}
		return b
	}
	f.Add(uint64(0), near(0, 0, 0, 0, 0), []byte{}, 0)
	f.Add(uint64(host.RefusedCall|5), near(0), []byte("wrong"), 8)
	f.Add(uint64(host.RefusedCall|host.UnsupportedRefusal|300), near(1<<10), bytes.Repeat([]byte{255}, 300), 200)
	f.Add(uint64(host.RefusedCall), near(math.MaxUint64), []byte{255}, size)
	f.Add(uint64(host.RefusedCall), near(size-64), []byte{1, 'x'}, 65)
	f.Add(uint64(math.MaxUint64>>1), near(1, size, 1, size-1, 1), []byte{}, 41)
	strange := uint64(AllReduce)<<kindShift | uint64(7)<<opShift | uint64(31)<<dtypeShift | maxElems
	f.Add(strange, near(1, math.MaxUint64, 2, 1<<63, math.MaxUint64), []byte{}, 1)
	f.Add(uint64(Broadcast)<<kindShift|uint64(63)<<rootShift, near(1, 0, 0, 0, 1), []byte{1}, 4095)

	j := newJob(f, 2)
	groups := j.group(f, Options{Scratch: size})
	windows := make([]*weft.Window, 2)
	j.must(f, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, size)
		return err
	})
	c := &groups[0].call
	f.Fuzz(func(t *testing.T, print uint64, near, ring []byte, n int) {
		// A failed communicator hides what the next input does.
		j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
		if err := c.Sync("fuzz"); err != nil {
			t.Fatal(err)
		}
		c.name, c.Request = "fuzz", Request{
			Collective: AllReduce, DType: weft.Float32, Count: 1, Bytes: 4,
			Ranks: 2, Slot: size / host.RingShare,
		}
		round := c.Last()
		mine, theirs := c.At(0, round), c.At(1, round)
		*mine.Call, *theirs.Call = uint64(c.fingerprint()), print
		line := theirs.InLine(host.NearBytes)
		clear(line)
		copy(line, near)
		board := c.Pad(1)
		clear(board.Ring)
		copy(board.Ring[min(*theirs.RingAt(), uint64(len(board.Ring))):], ring)

		inside := func(what string, b, mem []byte) {
			at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
			if len(b) != cap(b) || at > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-at {
				t.Fatalf("%s: %d bytes, room for %d, at %d of %d", what, len(b), cap(b), at, len(mem))
			}
		}
		m := int(uint(n) % (size/host.RingShare + 1)) // the caller's, who knows what a round carries
		inside("payload", c.Payload(1, round, m), groups[0].window.Peer(1))
		if err := c.Compare(c.name, round, nil); (err == nil) != (fingerprint(print) == c.fingerprint()) {
			t.Fatalf("%x against %x: %v", print, uint64(c.fingerprint()), err)
		} else if err != nil && len(err.Error()) > 2*host.RefusalBytes {
			t.Fatalf("a refusal of %d bytes: %q", len(err.Error()), err)
		}
		p := *placeIn(theirs)
		for _, place := range [][2]uint64{{p.input, p.inputAt}, {p.output, p.outputAt}, {windows[0].ID(), p.inputAt}} {
			if mem, err := c.peer(1, place[0], place[1], m); err == nil {
				w, _ := c.Comm.Operations().Window(place[0])
				inside(fmt.Sprintf("place %d", place), mem, w.Peer(1))
			} else if mem != nil {
				t.Fatalf("place %d: %d bytes and %v", place, len(mem), err)
			}
		}
	})
}

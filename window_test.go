package weft_test

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
)

// exchangeThrough stores in this rank's segment of the window and loads from the others'.
func exchangeThrough(t testing.TB, c *weft.Comm, w *weft.Window) error {
	ctx := testContext(t)
	n := w.Size()
	if len(w.Bytes()) != n {
		return fmt.Errorf("part of %d bytes in a window of %d", len(w.Bytes()), n)
	}
	for _, i := range []int{0, n / 2, n - 1} {
		if i >= 0 && i < n {
			w.Bytes()[i] = byte(c.Rank() + 1)
		}
	}
	if err := c.Operations().VerifySame(ctx, "test", "written", nil); err != nil {
		return err
	}
	for r := range c.Size() {
		p := w.Peer(r)
		if c.Masked(r) {
			if p != nil {
				return fmt.Errorf("a part of masked rank %d", r)
			}
			continue
		}
		if len(p) != n || cap(p) != n {
			return fmt.Errorf("rank %d's part has %d bytes", r, len(p))
		}
		if n > 0 && (p[0] != byte(r+1) || p[n/2] != byte(r+1) || p[n-1] != byte(r+1)) {
			return fmt.Errorf("rank %d's part shows %d %d %d", r, p[0], p[n/2], p[n-1])
		}
	}
	return c.Operations().VerifySame(ctx, "test", "read", nil)
}

func TestAlloc(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		for _, size := range []int{0, 1, 64, 4097, 1 << 20} {
			w, err := c.Alloc(ctx, size)
			if err != nil {
				return err
			}
			for i, b := range w.Bytes() {
				if b != 0 {
					return fmt.Errorf("byte %d of a new window is %d", i, b)
				}
			}
			if err := errors.Join(exchangeThrough(t, c, w), w.Close(), w.Close()); err != nil {
				return fmt.Errorf("window of %d: %w", size, err)
			}
		}
		return nil
	})
}

// TestAllocAborted ends the exchange of a window when a rank gives up instead of taking part.
func TestAllocAborted(t *testing.T) {
	group := join(t, 2)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		if c.Rank() == 1 { // agrees to a window, as Alloc begins, and no more
			err := c.Operations().VerifySame(ctx, "alloc window", "bytes: 4096", nil)
			c.Abort()
			return err
		}
		_, err := c.Alloc(ctx, 4096)
		return blame(err, 1, weft.ErrAborted)
	})
}

// TestWindowSizes asks for windows whose sizes differ, or are wrong on one rank.
func TestWindowSizes(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		if _, err := c.Alloc(ctx, 64*(1+c.Rank()/2)); !errors.Is(err, weft.ErrMismatch) {
			return fmt.Errorf("different sizes: %w: %v", errUnexpected, err)
		}
		_, err := c.Alloc(ctx, 64-65*(c.Rank()/2))
		if want := weft.ErrInvalid; !errors.Is(err, want) {
			return fmt.Errorf("a negative size on rank 2: %w: %v", errUnexpected, err)
		}
		if _, err := c.RegisterMemory(ctx, make([]byte, 10+c.Rank())); !errors.Is(err, weft.ErrMismatch) {
			return fmt.Errorf("memory of different sizes: %w: %v", errUnexpected, err)
		}
		w, err := c.Alloc(ctx, 64)
		if err != nil {
			return err
		}
		return errors.Join(exchangeThrough(t, c, w), w.Close())
	})
}

func TestRegisterMemory(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		mem := make([]byte, 1000)
		w, err := c.RegisterMemory(ctx, mem)
		if err != nil {
			return err
		}
		if &w.Bytes()[0] != &mem[0] || w.HugePages() {
			return errors.New("the window is not the memory that was registered")
		}
		return errors.Join(exchangeThrough(t, c, w), w.Close())
	})
}

// TestFind looks operands up by their address.
func TestFind(t *testing.T) {
	c := join(t, 1)[0]
	ctx := testContext(t)
	a, err := c.Alloc(ctx, 4096)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Alloc(ctx, 64)
	if err != nil {
		t.Fatal(err)
	}
	at := func(w *weft.Window, off int) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(&w.Bytes()[0]), off) }
	for _, test := range []struct {
		p      unsafe.Pointer
		n      int
		want   *weft.Window
		offset int
	}{
		{at(a, 0), 4096, a, 0},
		{at(a, 4095), 1, a, 4095},
		{at(a, 100), 3996, a, 100},
		{at(a, 100), 3997, nil, 0},
		{at(b, 64), 0, b, 64},
		{at(b, 1), 63, b, 1},
		{at(b, 1), 64, nil, 0},
		{nil, 0, nil, 0},
		{unsafe.Pointer(&test), 8, nil, 0},
	} {
		w, offset, ok := c.Operations().Find(test.p, test.n)
		if w != test.want || offset != test.offset || ok != (test.want != nil) {
			t.Errorf("%d bytes at %p: %v %d %v", test.n, test.p, w, offset, ok)
		}
	}
	if w, ok := c.Operations().Window(a.ID()); !ok || w != a {
		t.Errorf("window %d is %v", a.ID(), w)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Operations().Window(a.ID()); ok {
		t.Error("a closed window is still known")
	}
	if a.ID() == b.ID() {
		t.Error("two windows with one identifier")
	}
}

var test struct{ outside uint64 }

// TestWindowsAndMasks makes windows while a rank is left out, and with it again.
func TestWindowsAndMasks(t *testing.T) {
	group := join(t, 4)
	ctx := testContext(t)
	for _, lost := range []int{3, 0, 2} {
		var alive []*weft.Comm
		for _, c := range group {
			if c.Rank() != lost {
				alive = append(alive, c)
			}
		}
		must(t, alive, func(c *weft.Comm) error {
			if err := c.SetMask(ctx, lost); err != nil {
				return err
			}
			for range 3 {
				w, err := c.Alloc(ctx, 100)
				if err != nil {
					return err
				}
				if err := errors.Join(exchangeThrough(t, c, w), w.Close()); err != nil {
					return err
				}
			}
			return nil
		})
		must(t, group, func(c *weft.Comm) error {
			if err := c.SetMask(ctx); err != nil {
				return err
			}
			w, err := c.Alloc(ctx, 100)
			if err != nil {
				return err
			}
			return errors.Join(exchangeThrough(t, c, w), w.Close())
		})
	}
}

// A rank that leaves keeps its memory until it closes, and the others hear of it at once.
func TestLeave(t *testing.T) {
	group := join(t, 2)
	ctx := testContext(t)
	windows := make([]*weft.Window, 2)
	must(t, group, func(c *weft.Comm) (err error) {
		windows[c.Rank()], err = c.Alloc(ctx, 8)
		return err
	})
	if err := errors.Join(group[0].Operations().Leave(), group[0].Operations().Leave()); err != nil {
		t.Fatal(err)
	}
	windows[0].Bytes()[0] = 1 // it would fault
	if err := group[0].Err(); !errors.Is(err, weft.ErrClosed) {
		t.Errorf("who left: %v", err)
	}
	if err := group[1].Operations().VerifySame(ctx, "test", "", nil); !errors.Is(err, weft.ErrLeft) {
		t.Errorf("who stays: %v", err)
	}
	if err := errors.Join(group[0].Close(), group[0].Close()); err != nil {
		t.Error(err)
	}
}

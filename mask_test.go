package weft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
)

func TestSetMask(t *testing.T) {
	group := join(t, 5)
	ctx := testContext(t)
	must(t, group[:3], func(c *weft.Comm) error {
		if err := c.SetMask(ctx, 3, 4); err != nil {
			return err
		}
		if !c.Masked(3) || !c.Masked(4) || c.Masked(0) || c.Mask() != weft.RankSetOf(3, 4) ||
			c.Operations().Generation() != 1 {
			return fmt.Errorf("mask %v of generation %d", c.Mask(), c.Operations().Generation())
		}
		all, err := c.Operations().GatherNotes(ctx, "test", []byte{byte(c.Rank())})
		if err != nil {
			return err
		}
		if all[3] != nil || all[4] != nil || all[2][0] != 2 {
			return fmt.Errorf("notes %v", all)
		}
		return nil
	})
	// One comes back, one more goes.
	some := []*weft.Comm{group[0], group[2], group[3]}
	must(t, some, func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx, 1, 4), c.Operations().VerifySame(ctx, "test", "three", nil))
	})
	must(t, group, func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "five", nil))
	})
	if g := group[4].Operations().Generation(); g != group[0].Operations().Generation() {
		t.Errorf("generations %d and %d", g, group[0].Operations().Generation())
	}
}

// TestLeftOutAccuses lets a rank that was left out, and does not know it, blame others.
func TestLeftOutAccuses(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	rest := group[:2]
	must(t, rest, func(c *weft.Comm) error { return c.SetMask(ctx, 2) })
	group[2].Abort()
	must(t, rest, func(c *weft.Comm) error {
		return errors.Join(c.Err(), c.Operations().VerifySame(ctx, "test", "going on", nil))
	})
	// Its word may also lie there already when a rank looks: the rank alone decides what it means.
	for _, c := range rest {
		c.Operations().Waiter().Own.Abort(channel.Fault{
			Cause: channel.CauseTimeout, Rank: 1 - c.Rank(), Reporter: 2,
			Generation: c.Operations().Generation(),
		})
	}
	must(t, rest, func(c *weft.Comm) error {
		return errors.Join(c.Err(), c.Operations().VerifySame(ctx, "test", "going on", nil))
	})
}

func TestSetMaskRefuses(t *testing.T) {
	group := join(t, 2)
	ctx := testContext(t)
	if err := group[0].SetMask(ctx, 2); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("a rank that does not exist: %v", err)
	}
	if err := group[0].SetMask(ctx, 0); !errors.Is(err, weft.ErrMasked) {
		t.Errorf("itself: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := group[0].SetMask(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("alone: %v", err)
	}
	must(t, group, func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "both", nil))
	})
}

// TestLeftOut leaves a rank out that is alive. It learns so at once, whatever it does, and may come
// back.
func TestLeftOut(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	const out = 1
	for range 3 {
		must(t, []*weft.Comm{group[0], group[2]}, func(c *weft.Comm) error { return c.SetMask(ctx, out) })
		c := group[out]
		blames(t, out, c.Err(), out, weft.ErrMasked)
		blames(t, out, c.Operations().VerifySame(ctx, "test", "", nil), out, weft.ErrMasked)
		_, err := c.Alloc(ctx, 64)
		blames(t, out, err, out, weft.ErrMasked)
		must(t, group, func(c *weft.Comm) error {
			return errors.Join(c.SetMask(ctx), c.Err(), c.Operations().VerifySame(ctx, "test", "three", nil))
		})
	}
}

// heldContext holds whoever asks it whether it has ended, until it is let go.
type heldContext struct {
	context.Context
	once  sync.Once
	asked chan struct{}
	free  chan struct{}
}

func (c *heldContext) Err() error {
	c.once.Do(func() {
		close(c.asked)
		<-c.free
	})
	return c.Context.Err()
}

// TestLeftOutInside leaves a rank out while it is inside an agreement that the others have
// finished. They write other notes where it is about to read; it must not take those for the ones
// that it waited for.
func TestLeftOutInside(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	const out = 2
	held := &heldContext{Context: ctx, asked: make(chan struct{}), free: make(chan struct{})}
	var gone sync.WaitGroup
	gone.Add(out)
	go func() {
		gone.Wait()
		close(held.free)
	}()
	must(t, group, func(c *weft.Comm) error {
		if c.Rank() == out {
			all, err := c.Operations().GatherNotes(held, "test", nil)
			if err := blame(err, out, weft.ErrMasked); err != nil {
				return fmt.Errorf("notes %q: %w", all, err)
			}
			return nil
		}
		defer gone.Done()
		select {
		case <-held.asked:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := c.Operations().GatherNotes(ctx, "test", []byte("early"))
		err = errors.Join(err, c.SetMask(ctx, out))
		for range 2 {
			err = errors.Join(err, c.Operations().VerifySame(ctx, "test", "late", nil))
		}
		return err
	})
	must(t, group, func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "three", nil))
	})
}

// TestSetMaskDeadline waits for a rank that does not agree.
func TestSetMaskDeadline(t *testing.T) {
	group := join(t, 3, weft.WithDeadline(50*time.Millisecond))
	blames(t, 0, group[0].SetMask(testContext(t), 2), 1, weft.ErrTimeout)
}

// TestSetMaskRefused: a rank that names one that there is not is refused, and the others are told at once, whoever
// calls first. A communicator that had not failed has not failed then.
func TestSetMaskRefused(t *testing.T) {
	group := join(t, 3, weft.WithDeadline(30*time.Second))
	ctx := testContext(t)
	for _, first := range []int{0, 1, 2} {
		wrong := func(c *weft.Comm) error {
			if c.Rank() == 1 {
				return c.SetMask(ctx, 7)
			}
			return c.SetMask(ctx)
		}
		errs := make([]error, len(group))
		done := make(chan int)
		go func() { errs[first] = wrong(group[first]); done <- first }()
		time.Sleep(5 * time.Millisecond)
		for r, c := range group {
			if r != first {
				go func() { errs[r] = wrong(c); done <- r }()
			}
		}
		for range group {
			<-done
		}
		for r, err := range errs {
			want := "set mask: rank 1: refused there: rank 7 of 3"
			if r == 1 {
				want = "invalid argument: set mask: rank 7 of 3"
			}
			if !errors.Is(err, weft.ErrInvalid) || err.Error() != want || group[r].Err() != nil {
				t.Errorf("rank %d: %v, want %s; and %v", r, err, want, group[r].Err())
			}
		}
		must(t, group, func(c *weft.Comm) error { return c.Operations().VerifySame(ctx, "test", "as before", nil) })
		must(t, group, func(c *weft.Comm) error { return c.SetMask(ctx) })
	}
}

// TestSidesMaskEachOther lets disjoint sides of a job leave each other out at once: one goes on
// whole, the larger, or that with the lowest rank. The others are refused, and are taken back.
func TestSidesMaskEachOther(t *testing.T) {
	for _, c := range []struct {
		sides [][]int // the first is to go on
	}{
		{[][]int{{0}, {1}}},
		{[][]int{{0, 3}, {1, 2}}},
		{[][]int{{2, 3, 4}, {0, 1}}},
		{[][]int{{1, 4}, {2, 3}, {0}}},
	} {
		t.Run(fmt.Sprint(c.sides), func(t *testing.T) {
			side := map[int]int{}
			for i, ranks := range c.sides {
				for _, r := range ranks {
					side[r] = i
				}
			}
			group := join(t, len(side))
			ctx := testContext(t)
			for range 5 {
				goOn := func(c *weft.Comm) error {
					var out []int
					for r := range side {
						if side[r] != side[c.Rank()] {
							out = append(out, r)
						}
					}
					return c.SetMask(ctx, out...)
				}
				for r, err := range each(group, goOn) {
					if side[r] == 0 && err != nil {
						t.Errorf("rank %d: %v", r, err)
					} else if side[r] > 0 {
						blames(t, r, err, r, weft.ErrMasked)
						blames(t, r, group[r].Err(), r, weft.ErrMasked)
					}
				}
				// Not now, and not later.
				for r, c := range group {
					if side[r] > 0 {
						others := []int{}
						for other := range group {
							if other != r {
								others = append(others, other)
							}
						}
						blames(t, r, c.SetMask(ctx, others...), r, weft.ErrMasked)
					}
				}
				must(t, group, func(c *weft.Comm) error {
					if side[c.Rank()] > 0 {
						return nil
					}
					return errors.Join(c.Err(), c.Operations().VerifySame(ctx, "test", "one side", nil))
				})
				must(t, group, func(c *weft.Comm) error {
					return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "all", nil))
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestSidesMaskInTurn has the weaker side come first: it goes on, and the stronger gets the
// refusal.
func TestSidesMaskInTurn(t *testing.T) {
	group := join(t, 3, weft.WithDeadline(2*time.Second))
	ctx := testContext(t)
	if err := group[2].SetMask(ctx, 0, 1); err != nil {
		t.Fatal(err)
	}
	for r, err := range each(group[:2], func(c *weft.Comm) error { return c.SetMask(ctx, 2) }) {
		blames(t, r, err, r, weft.ErrMasked)
	}
	if err := errors.Join(group[2].Err(), group[2].Operations().VerifySame(ctx, "test", "alone", nil)); err != nil {
		t.Fatal(err)
	}
	must(t, group, func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "all", nil))
	})
}

// TestLeftOutWaits for those who go on without it, without them in its set, until the deadline. It
// blames nobody else, and disturbs nobody.
func TestLeftOutWaits(t *testing.T) {
	group := join(t, 3, weft.WithDeadline(100*time.Millisecond))
	ctx := testContext(t)
	rest := group[:2]
	must(t, rest, func(c *weft.Comm) error { return c.SetMask(ctx, 2) })
	blames(t, 2, group[2].SetMask(ctx, 0), 2, weft.ErrMasked)
	blames(t, 2, group[2].SetMask(ctx), 2, weft.ErrMasked)
	must(t, rest, func(c *weft.Comm) error {
		return errors.Join(c.Err(), c.Operations().VerifySame(ctx, "test", "two", nil))
	})
	// Nor does it go on alone when they have left in good order: they have done the job.
	for _, c := range rest {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	blames(t, 2, group[2].SetMask(ctx, 0, 1), 2, weft.ErrMasked)
}

// TestClose leaves while others wait, and calls everything afterwards.
func TestClose(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	windows := make([]*weft.Window, 3)
	must(t, group, func(c *weft.Comm) (err error) {
		windows[c.Rank()], err = c.Alloc(ctx, 64)
		if err == nil {
			windows[c.Rank()].Bytes()[5] = 55
			err = c.Operations().VerifySame(ctx, "test", "written", nil)
		}
		return err
	})
	const gone = 1
	must(t, group, func(c *weft.Comm) error {
		if c.Rank() == gone {
			return errors.Join(c.Close(), c.Close())
		}
		if err := blame(c.Operations().VerifySame(ctx, "test", "", nil), gone, weft.ErrLeft); err != nil {
			return err
		}
		if err := blame(c.Err(), gone, weft.ErrLeft); err != nil {
			return err
		}
		// What the rank that left has published can still be read.
		if windows[c.Rank()].Peer(gone)[5] != 55 {
			return errors.New("the window of the rank that left is empty")
		}
		if err := blame(c.SetMask(ctx), gone, weft.ErrLeft); err != nil {
			return err
		}
		return errors.Join(c.SetMask(ctx, gone), c.Operations().VerifySame(ctx, "test", "two", nil))
	})
	c := group[gone]
	for name, f := range map[string]func() error{
		"alloc":           func() error { _, err := c.Alloc(ctx, 1); return err },
		"register memory": func() error { _, err := c.RegisterMemory(ctx, nil); return err },
		"agree":           func() error { return c.Operations().VerifySame(ctx, "test", "", nil) },
		"set mask":        func() error { return c.SetMask(ctx) },
		"error":           c.Err,
	} {
		if err := f(); !errors.Is(err, weft.ErrClosed) || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s of a closed communicator: %v", name, err)
		}
	}
	if err := windows[gone].Close(); err != nil {
		t.Errorf("a window after its communicator: %v", err)
	}
}

package weft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
)

func TestAgree(t *testing.T) {
	group := join(t, 4)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		for round := range 300 {
			all, err := c.Operations().GatherNotes(ctx, "test", bytes.Repeat([]byte{byte(c.Rank())}, (round*7+c.Rank())%1025))
			if err != nil {
				return err
			}
			for r, note := range all {
				if !bytes.Equal(note, bytes.Repeat([]byte{byte(r)}, (round*7+r)%1025)) {
					return fmt.Errorf("round %d: rank %d's note is %d bytes of %v", round, r, len(note), note[:min(1, len(note))])
				}
			}
		}
		return nil
	})
	must(t, group, func(c *weft.Comm) error {
		if _, err := c.Operations().GatherNotes(ctx, "test", make([]byte, 1025)); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a note that is too long: %v", err)
		}
		return nil
	})
}

func TestAgreeOn(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		if err := c.Operations().VerifySame(ctx, "test", "the same", nil); err != nil {
			return err
		}
		words := "the same"
		if c.Rank() == 1 {
			words = "something else"
		}
		err := c.Operations().VerifySame(ctx, "test", words, nil)
		if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "something else") ||
			!strings.Contains(err.Error(), "the same") {
			return fmt.Errorf("different words: %w: %v", errUnexpected, err)
		}
		// One rank's own error reaches all, and keeps its kind.
		for _, refusal := range []struct{ own, kind error }{
			{errUnexpected, weft.ErrAborted},
			{weft.Unsupportedf("not here"), weft.ErrUnsupported},
			{weft.Invalidf("not so"), weft.ErrInvalid},
		} {
			var own error
			if c.Rank() == 2 {
				own = refusal.own
			}
			err = c.Operations().VerifySame(ctx, "test", "the same", own)
			if c.Rank() == 2 {
				if err != own {
					return fmt.Errorf("own error: %v", err)
				}
			} else if b := blame(err, 2, refusal.kind); b != nil {
				return b
			}
		}
		return c.Operations().VerifySame(ctx, "test", "the same again", nil)
	})
}

// TestFail tells the others of an error that an operation met half-way.
// TestRefusalsBeforeAborts: ranks that abort as soon as they know of a refusal keep it from no other.
func TestRefusalsBeforeAborts(t *testing.T) {
	ctx := testContext(t)
	for round := range 60 {
		must(t, join(t, 4), func(c *weft.Comm) error {
			var own error
			if c.Rank() == round%4 || round%2 == 0 {
				own = weft.Unsupportedf("not on rank %d", c.Rank())
			}
			err := c.Operations().VerifySame(ctx, "test", "", own)
			c.Abort()
			if !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("%w: %v", errUnexpected, err)
			}
			return nil
		})
	}
}

func TestFail(t *testing.T) {
	for _, failure := range []struct{ met, want error }{
		{&weft.PeerError{Rank: 1, Op: "test", Err: weft.ErrMismatch}, weft.ErrAborted}, // rank 0 gives up
		{context.Canceled, weft.ErrAborted},
	} {
		group := join(t, 3)
		if err := group[0].Operations().Fail(failure.met); err != failure.met {
			t.Errorf("Fail returns %v, was given %v", err, failure.met)
		}
		for _, c := range group {
			if err := blame(c.Err(), 0, failure.want); err != nil {
				t.Errorf("rank %d after %v: %v", c.Rank(), failure.met, err)
			}
		}
	}
}

// TestAbort ends everyone's operations, those under way and those to come, until the ranks agree to
// go on.
func TestAbort(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	for range 3 {
		must(t, group, func(c *weft.Comm) error {
			if c.Rank() == 1 {
				c.Abort()
			} else if err := blame(c.Operations().VerifySame(ctx, "test", "", nil), 1, weft.ErrAborted); err != nil {
				return err
			}
			if _, err := c.Alloc(ctx, 64); blame(err, 1, weft.ErrAborted) != nil {
				return fmt.Errorf("alloc: %w", err)
			}
			if err := blame(c.Err(), 1, weft.ErrAborted); err != nil {
				return err
			}
			if err := c.SetMask(ctx); err != nil {
				return err
			}
			return errors.Join(c.Err(), c.Operations().VerifySame(ctx, "test", "on we go", nil))
		})
	}
	if g := group[0].Operations().Generation(); g != 3 {
		t.Errorf("generation %d after three agreements to go on", g)
	}
}

// TestCancel cancels one rank's wait: it gets its context's error, the others learn that it gave
// up.
func TestCancel(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	gaveUp := make(chan struct{})
	must(t, group, func(c *weft.Comm) error {
		switch c.Rank() {
		case 0:
			short, cancel := context.WithCancel(ctx)
			time.AfterFunc(5*time.Millisecond, cancel)
			err := c.Operations().VerifySame(short, "test", "", nil)
			close(gaveUp)
			if !errors.Is(err, context.Canceled) {
				return fmt.Errorf("cancelled: %w: %v", errUnexpected, err)
			}
		case 1:
			if err := blame(c.Operations().VerifySame(ctx, "test", "", nil), 0, weft.ErrAborted); err != nil {
				return err
			}
		case 2:
			<-gaveUp
		}
		if err := blame(c.Err(), 0, weft.ErrAborted); err != nil {
			return err
		}
		return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "again", nil))
	})
}

// TestDeadline waits for a rank that does not come: everyone names it, also those that wait for
// somebody who waits for it.
func TestDeadline(t *testing.T) {
	const deadline = 150 * time.Millisecond
	group := join(t, 4, weft.WithDeadline(deadline))
	ctx := testContext(t)
	const late = 3
	start := time.Now()
	must(t, group[:late], func(c *weft.Comm) error {
		return blame(c.Operations().VerifySame(ctx, "test", "", nil), late, weft.ErrTimeout)
	})
	if took := time.Since(start); took < deadline {
		t.Errorf("gave up after %v of %v", took, deadline)
	}
	for r, c := range group {
		blames(t, r, c.Err(), late, weft.ErrTimeout)
	}
	// The late rank was there all the time: all go on.
	must(t, group, func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx), c.Err(), c.Operations().VerifySame(ctx, "test", "all", nil))
	})
}

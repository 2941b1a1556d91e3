package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
)

// gathered is the ranks' numbers in another communicator, by their numbers in this one.
func gathered(ctx context.Context, c *weft.Comm, number int) ([]int, error) {
	notes, err := c.Operations().GatherNotes(ctx, "test", []byte{byte(number)})
	var all []int
	for _, n := range notes {
		if n != nil {
			all = append(all, int(n[0]))
		}
	}
	return all, err
}

func TestSplit(t *testing.T) {
	group := join(t, 5)
	ctx := testContext(t)
	want := map[int][]int{0: {4, 2, 0}, 1: {1}}
	must(t, group, func(c *weft.Comm) error {
		color := c.Rank() % 2
		if c.Rank() == 3 {
			color = weft.NoColor
		}
		part, err := c.Split(ctx, color, -c.Rank())
		if err != nil || part == nil {
			if color == weft.NoColor && part == nil {
				return err
			}
			return fmt.Errorf("a communicator %v: %w", part, err)
		}
		all, err := gathered(ctx, part, c.Rank())
		if err == nil && (!slices.Equal(all, want[color]) || all[part.Rank()] != c.Rank()) {
			err = fmt.Errorf("ranks %v, want %v", all, want[color])
		}
		if err == nil && part.Deadline() != c.Deadline() {
			err = fmt.Errorf("a deadline of %v, want %v", part.Deadline(), c.Deadline())
		}
		return errors.Join(err, part.Close())
	})
	// A color that is refused is on all ranks, and nothing is broken.
	for r, err := range each(group, func(c *weft.Comm) error {
		_, err := c.Split(ctx, 0-2*(c.Rank()/4), 0)
		return err
	}) {
		if !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	// Beside another call it says what that is, without its color.
	for r, err := range each(group, func(c *weft.Comm) error {
		if c.Rank() == 1 {
			return c.Operations().VerifySame(ctx, "other", "other: 1", nil)
		}
		_, err := c.Split(ctx, 1, 0)
		return err
	}) {
		if !errors.Is(err, weft.ErrMismatch) || strings.Contains(err.Error(), `\x00`) ||
			!strings.Contains(err.Error(), `rank 1 calls "other", ranks 0, 2-`) {
			t.Errorf("rank %d, beside another call: %v", r, err)
		}
	}
	must(t, group, func(c *weft.Comm) error { // they outlive their parent's failure
		twin, err := c.Duplicate(ctx)
		if err != nil {
			return err
		}
		if _, err := gathered(ctx, twin, 0); err != nil { // all have it
			return err
		}
		for c.Rank() == 1 && c.Err() == nil {
			c.Abort()
		}
		for c.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		all, err := gathered(ctx, twin, c.Rank())
		if err == nil && !slices.Equal(all, []int{0, 1, 2, 3, 4}) {
			err = fmt.Errorf("ranks %v", all)
		}
		return errors.Join(err, twin.Close())
	})
}

func TestShrink(t *testing.T) {
	group := join(t, 4)
	ctx := testContext(t)
	if err := group[1].Close(); err != nil {
		t.Fatal(err)
	}
	rest := []*weft.Comm{group[0], group[2], group[3]}
	must(t, rest, func(c *weft.Comm) error {
		if err := c.SetMask(ctx, 1); err != nil {
			return err
		}
		if _, err := c.Duplicate(ctx); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("a duplicate of a communicator with a mask: %w", err)
		}
		less, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		all, err := gathered(ctx, less, c.Rank())
		if err == nil && (!slices.Equal(all, []int{0, 2, 3}) || less.Size() != 3 || !less.Mask().Empty()) {
			err = fmt.Errorf("ranks %v of %d", all, less.Size())
		}
		return errors.Join(err, less.Close())
	})
}

// TestSplitEnds: a rank that does not come is named, by its number in the communicator that is split.
func TestSplitEnds(t *testing.T) {
	group := join(t, 3, weft.WithDeadline(200*time.Millisecond))
	ctx := testContext(t)
	for i, err := range each(group[:2], func(c *weft.Comm) error {
		_, err := c.Split(ctx, 0, 0)
		return err
	}) {
		blames(t, i, err, 2, weft.ErrTimeout)
	}
}

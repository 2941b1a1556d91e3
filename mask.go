package weft

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/weftgo/weft/channel"
)

// SetMask leaves the given ranks out of everything that follows, takes back in those that are not listed, and clears the failure.
// It is collective over the ranks that remain: each calls it with the same set, when none of its operations is in progress, and it
// returns when all have. With no arguments it is how ranks go on together after an operation was cancelled.
//
// Each rank publishes the set and the generation that it aims at, one above its own, raises its aim when it sees a higher one, and is
// done when all unmasked ranks show the same. What operations publish from then on counts from the new generation, so nothing left
// over from before the failure can match.
func (c *Comm) SetMask(ctx context.Context, ranks ...int) error {
	const op = "set mask"
	if c.closed.Load() {
		return fmt.Errorf("%s: communicator %w", op, ErrClosed)
	}
	if err := c.reach(op); err != nil {
		return err
	}
	var set uint64
	for _, r := range ranks {
		if r < 0 || r >= c.size {
			return Invalidf("%s: rank %d of %d", op, r, c.size)
		}
		set |= 1 << uint(r)
	}
	if set>>uint(c.rank)&1 != 0 {
		return fmt.Errorf("%s: rank %d is this rank: %w; a rank that is left out does not call", op, c.rank, ErrMasked)
	}
	if dead := (c.died.Load() | c.left.Load()) &^ set; dead != 0 {
		return &PeerError{Rank: bits.TrailingZeros64(dead), Op: op, Err: ErrDied}
	}

	own := c.control[c.rank]
	target := c.Generation() + 1
	publish := func() {
		own.mask.set.Store(set)
		own.mask.target.Store(target)
		own.mask.changed.Add(1)
	}
	publish()
	start := time.Now()
	for r := 0; r < c.size; {
		if set>>uint(r)&1 != 0 || r == c.rank {
			r++
			continue
		}
		p := &c.control[r].mask
		seen := p.changed.Load()
		theirs, theirSet := p.target.Load(), p.set.Load()
		switch {
		case theirs > target:
			// Somebody is ahead: aim as high and look at everyone again.
			target = theirs
			publish()
			r = 0
		case theirs == target && theirSet == set:
			r++
		case theirs == target && theirSet&^set != 0 && c.died.Load()&theirSet&^set != 0:
			return &PeerError{Rank: bits.TrailingZeros64(c.died.Load() & theirSet &^ set), Op: op, Err: ErrDied}
		default:
			if err := c.awaitMask(ctx, p.changed.Load, seen, r, set, start); err != nil {
				return err
			}
		}
	}

	c.mask.Store(set)
	c.generation.Store(target)
	// Faults that the mask answers, and those of cancelled calls, are over.
	f := own.fault.Fault()
	if f.Cause != channel.CauseNone {
		own.fault.Clear(f)
	}
	// A rank that died since the check above could not say so over the fault that was there.
	if dead := c.died.Load() &^ set; dead != 0 {
		own.fault.Abort(channel.Fault{Cause: channel.CauseDied, Rank: bits.TrailingZeros64(dead), Reporter: c.rank})
	}
	c.logger.Info("mask", "rank", c.rank, "set", fmt.Sprintf("%#x", set), "generation", target)
	return nil
}

// awaitMask waits for another word from rank r. It does not use the Waiter: the abort word is set, which is why we are here.
func (c *Comm) awaitMask(ctx context.Context, load func() uint64, seen uint64, r int, set uint64, start time.Time) error {
	const op = "set mask"
	for nap := 20 * time.Microsecond; load() == seen; nap = min(2*nap, time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if dead := c.died.Load() &^ set; dead != 0 {
			return &PeerError{Rank: bits.TrailingZeros64(dead), Op: op, Err: ErrDied}
		}
		if time.Since(start) > c.waiter.Timeout {
			return &PeerError{Rank: r, Op: op, Err: ErrTimeout}
		}
		time.Sleep(nap)
	}
	return nil
}

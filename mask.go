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
// A SetMask that fails is a failure like any other: the ranks call it again, with a larger set if one of them died meanwhile. A rank that is left
// out alive gets an error that wraps [ErrMasked] from its operations, until it and the others call SetMask without it in the set.
//
// Each rank publishes the set and the generation that it aims at, one above its last, raises its aim when it sees a higher one, and is
// done when all unmasked ranks show the same. What operations publish from then on counts from the new generation, so nothing left
// over from before the failure can match.
//
// On a GPU each rank first waits, until the deadline, for all work in its context to end: kernels that wait for peers leave, because there was a
// failure. Not before all ranks are that far does any go on.
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
	if err := c.lost(op, set); err != nil {
		return err
	}
	if c.device != nil {
		if err := c.finish(ctx, op); err != nil {
			return c.Fail(err)
		}
	}
	target, err := c.agreeOnMask(ctx, op, set)
	if err != nil {
		// What was wanted must not be taken for agreement later. No rank wants a set that it is in itself.
		own := &c.control[c.rank].mask
		own.publish(own.target.Load(), 1<<uint(c.rank))
		return c.Fail(err)
	}
	c.mask.Store(set)
	c.generation.Store(target)

	// Faults of before are over. One that another rank has met since then is not.
	own := &c.control[c.rank].fault
	if f := own.Fault(); f.Cause != channel.CauseNone && f.Older(target) {
		own.Clear(f)
	}
	if c.device != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, c.waiter.Timeout, ErrTimeout)
		err := c.device.forget(ctx)
		cancel()
		if err != nil {
			return c.Fail(deviceError(op, err))
		}
		c.device.abort.refresh()
	}
	// A rank that died since the check above could not say so over the fault that was there.
	if dead := c.died.Load() &^ set; dead != 0 {
		own.Abort(c.report(channel.Fault{Cause: channel.CauseDied, Rank: bits.TrailingZeros64(dead)}))
	}
	for r, p := range c.control {
		if set>>uint(r)&1 != 0 {
			p.fault.Abort(c.report(channel.Fault{Cause: channel.CauseMasked, Rank: r}))
		}
	}
	c.logger.Info("mask", "rank", c.rank, "set", fmt.Sprintf("%#x", set), "generation", target)
	return nil
}

// finish lets this rank's work on its GPU end before others are told that it goes on. Kernels that wait leave by the abort word.
func (c *Comm) finish(ctx context.Context, op string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.waiter.Timeout, ErrTimeout)
	defer cancel()
	return c.device.Quiesce(ctx, op)
}

// agreeOnMask returns the generation in which all ranks outside the set want to leave it out.
func (c *Comm) agreeOnMask(ctx context.Context, op string, set uint64) (target uint64, err error) {
	own := &c.control[c.rank].mask
	target = own.target.Load() + 1
	own.publish(target, set)
	start := time.Now()
	for r := 0; r < c.size; {
		if set>>uint(r)&1 != 0 || r == c.rank {
			r++
			continue
		}
		p := &c.control[r].mask
		seen, theirs, theirSet, ok := p.read()
		switch {
		case ok && theirs > target:
			// Somebody is ahead: aim as high and look at everyone again.
			target = theirs
			own.publish(target, set)
			r = 0
		case ok && theirs == target && theirSet == set:
			r++
		default:
			if err := c.awaitMask(ctx, op, r, seen, target, set, start); err != nil {
				return 0, err
			}
		}
	}
	return target, nil
}

// awaitMask waits for another word from rank r. It does not use the Waiter: the abort word is set, which is why we are here.
func (c *Comm) awaitMask(ctx context.Context, op string, r int, seen, target, set uint64, start time.Time) error {
	p := &c.control[r].mask
	for nap := 20 * time.Microsecond; p.changed.Load() == seen; nap = min(2*nap, time.Millisecond) {
		if err := c.lost(op, set); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: still waiting for rank %d: %w", op, r, err)
		}
		if time.Since(start) > c.waiter.Timeout {
			if _, theirs, theirSet, ok := p.read(); ok && theirs >= target && theirSet>>uint(r)&1 == 0 {
				return &PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: it leaves out %v, this rank %v", ErrMismatch, ranksOf(theirSet), ranksOf(set))}
			}
			return &PeerError{Rank: r, Op: op, Err: ErrTimeout}
		}
		time.Sleep(nap)
	}
	return nil
}

// lost is the error for a rank that is gone and not in the set.
func (c *Comm) lost(op string, set uint64) error {
	if gone := c.died.Load() &^ set; gone != 0 {
		return &PeerError{Rank: bits.TrailingZeros64(gone), Op: op, Err: ErrDied}
	}
	if gone := c.left.Load() &^ set; gone != 0 {
		return &PeerError{Rank: bits.TrailingZeros64(gone), Op: op, Err: ErrLeft}
	}
	return nil
}

// ranksOf lists a set.
func ranksOf(set uint64) []int {
	ranks := []int{}
	for ; set != 0; set &= set - 1 {
		ranks = append(ranks, bits.TrailingZeros64(set))
	}
	return ranks
}

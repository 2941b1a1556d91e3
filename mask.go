package weft

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/internal/refusal"
)

// SetMask leaves the given ranks out of everything that follows, takes back in those that are not
// listed, and clears the failure. It is collective over the ranks that remain: each calls it with
// the same set, when none of its operations is in progress, and it returns when all have. With no
// arguments it is how ranks go on together after an operation was cancelled.
//
// A SetMask that fails is a failure like any other: the ranks call it again, with a larger set if
// one of them died meanwhile. Ranks whose sets differ all get an error that wraps [ErrMismatch] and says which differ,
// a second after they have met; a rank that is not in 0 to Size-1 is refused on every rank.
// A rank that is left out alive gets an error that wraps [ErrMasked] from its operations, until it and the others call
// SetMask without it in the set.
//
// Once SetMask returns, nothing that a rank of another host that is left out writes, then or before, lands in memory of
// windows or port services. Such a write ends that rank's connection, and it cannot be taken back: a SetMask without it
// in the set then returns an error that names it and wraps [ErrDied], on all ranks. Port services with channels to a
// rank that is taken back are made anew.
//
// A job never becomes two. Of ranks that leave each other out, one side goes on:
//
//   - A side that none of the present members belongs to is refused with [ErrMasked] while a member
//     that it leaves out is alive, or has left in good order. A rank that was stopped, left out and
//     woken is such a side on its own. Without that member in its set it waits to be taken back,
//     until the deadline, and then gets ErrMasked, too.
//   - Of two sides of members that call at once, the larger goes on, and at equal size the one with
//     the lowest rank. Dead ranks do not count.
//   - Else the side that called first goes on. The other gets ErrMasked.
//
// On a GPU each rank first waits, until the deadline, for all work in its context to end: kernels
// that wait for peers leave, because there was a failure. Not before all ranks are that far does
// any go on.
func (c *Comm) SetMask(ctx context.Context, ranks ...int) error {
	const op = "set mask"
	if err := c.gate.Enter(op); err != nil {
		return err
	}
	defer c.gate.Leave()
	var set RankSet
	own := refusal.Of(ctx)
	for _, r := range ranks {
		if r < 0 || r >= c.size {
			own = cmp.Or(own, Invalidf("%s: rank %d of %d", op, r, c.size))
			continue
		}
		set = set.With(r)
	}
	if own != nil {
		c.control.Refuse(own)
		return own
	}
	if set.Has(c.rank) {
		return fmt.Errorf("%s: rank %d is this rank: %w; a rank that is left out does not call", op, c.rank, ErrMasked)
	}
	if err := c.control.Lost(op, set); err != nil {
		return err
	}
	if c.device != nil {
		if err := c.finish(ctx, op); err != nil {
			return c.fail(err)
		}
	}
	err := c.control.SetMask(ctx, op, set, func() error { return c.renew(ctx, op) })
	if errors.Is(err, ErrMismatch) || errors.Is(err, ErrInvalid) {
		return err // every rank says so by itself
	}
	if err != nil {
		return c.fail(err)
	}
	return c.fail(c.renewRegions(ctx, op))
}

// finish lets this rank's work on its GPU end before others are told that it goes on. Kernels that
// wait leave by the abort word.
func (c *Comm) finish(ctx context.Context, op string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.control.Waiter.Timeout, ErrTimeout)
	defer cancel()
	if err := c.device.quiesce(ctx, op); err != nil {
		return err
	}
	if _, written := c.recorded(); written {
		c.device.gaveUp.add(c.control.Generation())
	}
	return nil
}

// renew makes the device's record and abort word those of a new generation.
func (c *Comm) renew(ctx context.Context, op string) error {
	if c.device == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.control.Waiter.Timeout, ErrTimeout)
	defer cancel()
	if err := c.device.forget(ctx); err != nil {
		return deviceError(op, err)
	}
	c.device.abort.refresh()
	return nil
}

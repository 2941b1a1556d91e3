package weft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// SetMask leaves the given ranks out of everything that follows, takes back in those that are not
// listed, and clears the failure. It is collective over the ranks that remain: each calls it with
// the same set, when none of its operations is in progress, and it returns when all have. With no
// arguments it is how ranks go on together after an operation was cancelled.
//
// A SetMask that fails is a failure like any other: the ranks call it again, with a larger set if
// one of them died meanwhile. A rank that is left out alive gets an error that wraps [ErrMasked]
// from its operations, until it and the others call SetMask without it in the set.
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
	if c.closed.Load() {
		return fmt.Errorf("%s: communicator %w", op, ErrClosed)
	}
	if err := c.requireOneHost(op); err != nil {
		return err
	}
	var set RankSet
	for _, r := range ranks {
		if r < 0 || r >= c.size {
			return Invalidf("%s: rank %d of %d", op, r, c.size)
		}
		set = set.With(r)
	}
	if set.Has(c.rank) {
		return fmt.Errorf("%s: rank %d is this rank: %w; a rank that is left out does not call", op, c.rank, ErrMasked)
	}
	if err := c.lost(op, set); err != nil {
		return err
	}
	if c.device != nil {
		if err := c.finish(ctx, op); err != nil {
			return c.fail(err)
		}
	}
	target, err := c.agreeOnMask(ctx, op, set)
	if errors.Is(err, ErrMismatch) {
		// Whoever has another set finds out on its own. Told of this rank, it would leave it out.
		c.pages[c.rank].fault.Abort(c.report(channel.Fault{Cause: channel.CauseAbort, Rank: c.rank}))
		return err
	}
	if err != nil {
		return c.fail(err)
	}
	c.mask.Store(&set)
	c.generation.Store(target)
	c.waiter.Hide()

	// Faults of before are over. One that another rank has met since then is not.
	own := &c.pages[c.rank].fault
	if f := own.Fault(); f.Cause != channel.CauseNone && f.Older(target) {
		own.Clear(f)
	}
	if c.device != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, c.waiter.Timeout, ErrTimeout)
		err := c.device.forget(ctx)
		cancel()
		if err != nil {
			return c.fail(deviceError(op, err))
		}
		c.device.abort.refresh()
	}
	// A rank that died since the check above could not say so over the fault that was there.
	if dead := c.died.Load().Minus(set).Lowest(); dead >= 0 {
		own.Abort(c.report(channel.Fault{Cause: channel.CauseDied, Rank: dead}))
	}
	for r := range set.All() {
		c.pages[r].fault.Abort(c.report(channel.Fault{Cause: channel.CauseMasked, Rank: r}))
	}
	c.logger.Info("mask", "rank", c.rank, "set", set.String(), "generation", target)
	return nil
}

// finish lets this rank's work on its GPU end before others are told that it goes on. Kernels that
// wait leave by the abort word.
func (c *Comm) finish(ctx context.Context, op string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.waiter.Timeout, ErrTimeout)
	defer cancel()
	return c.device.quiesce(ctx, op)
}

// A decision says who goes on together: the members, all ranks but those that it leaves out. The
// ranks of one side propose it: each publishes the set and the generation that it aims at, one
// above all that it knows, and raises its aim when it sees a higher one. When all of a side show
// the same, its lowest rank, the leader, decides: it replaces the last decision by this one, in a
// word that all ranks share. A rank is done when it sees its proposal decided. What operations
// publish from then on counts from the new generation, so nothing left over from before the failure
// can match.
//
// These hold, whatever ranks are stopped, killed or slow:
//
//   - Decisions follow one another in one order, and generations grow in it: the word changes by
//     compare-and-swap only, and only from the decision that the leader has judged its proposal by.
//   - A SetMask succeeds only if its proposal was decided while it lasted, with every rank of the
//     side having proposed the same.
//   - A decision shares a member with the one before it, unless all members whom it leaves out are
//     dead. So of two disjoint sides one at most is decided: the first to be is all that the word
//     shows when the other is judged, and that one has no member in it. A side that shares a member
//     with the decision before it takes that member away from all others: they cannot go on without
//     it, nor decide.
type decision struct {
	word       uint64 // the generation, the leader in 16 bits, and which of the leader's rosters
	generation uint64
	out        RankSet // the ranks that are left out
}

const (
	rosterBits = 1
	leaderBits = 16
)

const _ = uint(1<<leaderBits - MaxRanks)

// decision returns the last one. The leader does not change a roster while the word names it.
func (c *Comm) decision() decision {
	if c.remote >= 0 {
		return decision{} // ranks of several hosts do not share the word, and do not decide
	}
	for {
		w := c.pages[0].decided.Load()
		out := c.pages[w>>rosterBits&(1<<leaderBits-1)].rosters[w&1].Load()
		if c.pages[0].decided.Load() == w {
			return decision{word: w, generation: w >> (leaderBits + rosterBits), out: out}
		}
	}
}

// leftOut reports whether the others have decided to go on without this rank.
func (c *Comm) leftOut() bool { return c.decision().out.Has(c.rank) }

// decide makes a decision of this rank's proposal, unless there was another one after last.
func (c *Comm) decide(last decision, target uint64, set RankSet) {
	own, roster := c.pages[c.rank], uint64(0)
	if last.word>>rosterBits&(1<<leaderBits-1) == uint64(c.rank) {
		roster = 1 - last.word&1
	}
	own.rosters[roster].Store(set)
	c.pages[0].decided.CompareAndSwap(last.word, target<<(leaderBits+rosterBits)|uint64(c.rank)<<rosterBits|roster)
}

// grace is how long a side that others could outvote waits for them to call. An eighth of a short
// deadline is less.
const grace = 200 * time.Millisecond

// agreeOnMask returns the generation in which all ranks outside the set go on without those in it.
func (c *Comm) agreeOnMask(ctx context.Context, op string, set RankSet) (uint64, error) {
	own := &c.pages[c.rank].mask
	side := c.everyone().Minus(set)
	leads := side.Lowest() == c.rank
	first := max(own.target.Load(), c.decision().generation) + 1
	if f := c.pages[c.rank].fault.Fault(); f.Cause != channel.CauseNone {
		first = f.After(first) // faults of other ranks' SetMasks, from which they have returned
	}
	target := first
	own.publish(target, set)
	var watch channel.Stopwatch
	for nap := 20 * time.Microsecond; ; nap = min(2*nap, c.pace(time.Millisecond)) {
		waited := watch.Look()
		last := c.decision()
		if last.out == set && last.generation >= first {
			return last.generation, nil
		}
		late, highest := c.aims(side, target, set)
		err := c.refusal(ctx, op, last, first, target, set, late, waited)
		if highest = max(highest, last.generation+1); err == nil && highest > target {
			target, nap = highest, 20*time.Microsecond
			own.publish(target, set)
			continue
		}
		if err == nil && leads && late < 0 {
			mine := c.claim(side, last)
			if rival := c.claim(set.Minus(last.out).Minus(c.left.Load()), last); waited > min(grace, c.waiter.Timeout/8) ||
				!rival.beats(mine) {
				c.decide(last, target, set)
				continue
			}
		}
		if err != nil {
			// What was wanted must not be taken for agreement later. No rank wants a set that it is
			// in itself.
			own.publish(target, RankSetOf(c.rank))
			if last = c.decision(); last.out == set && last.generation >= first { // the leader was faster
				return last.generation, nil
			}
			return 0, err
		}
		time.Sleep(nap)
	}
}

// pace is how often a rank looks at all others: as often as it says where they are few. Ranks of one
// process would otherwise do nothing but look at each other.
func (c *Comm) pace(few time.Duration) time.Duration {
	return few * time.Duration(1+(c.inProcess-1)/64)
}

// everyone is the set of all ranks.
func (c *Comm) everyone() RankSet { return rankset.Below(c.size) }

// aims looks at what the ranks of a side propose: highest is the highest generation that any aims
// at, and late the first that does not propose this, or -1. Those that propose nothing, for they
// have not called, come before those that propose another set.
func (c *Comm) aims(side RankSet, target uint64, set RankSet) (late int, highest uint64) {
	late = -1
	silent := false
	for r := range side.All() {
		theirs, theirSet, ok := c.pages[r].mask.read()
		highest = max(highest, theirs)
		if (!ok || theirs < target) && !silent || (theirs != target || theirSet != set) && late < 0 {
			late, silent = r, !ok || theirs < target
		}
	}
	return late, highest
}

// proposes reports whether a rank shows this proposal.
func (c *Comm) proposes(rank int, target uint64, set RankSet) bool {
	theirs, theirSet, ok := c.pages[rank].mask.read()
	return ok && theirs == target && theirSet == set
}

// refusal is why a proposal is given up, if it is. Late is who does not support it, or -1.
func (c *Comm) refusal(ctx context.Context, op string, last decision, first, target uint64, set RankSet,
	late int, waited time.Duration,
) error {
	side := c.everyone().Minus(set)
	masked := func(by int) error {
		err := fmt.Errorf("%w: rank %d goes on without it; wait to be taken back with SetMask without that "+
			"rank in the set", ErrMasked, by)
		return &PeerError{Rank: c.rank, Op: op, Err: err}
	}
	leader := side.Lowest()
	// As long as the leader holds on to the proposal it alone gives it up to others: it may be
	// about to decide.
	if by := c.outvoted(side, last); by >= 0 && (c.rank == leader || !c.proposes(leader, target, set)) {
		return masked(by)
	}
	if err := c.lost(op, set); err != nil {
		return err
	}
	// What another rank of the side has met in its SetMask ends this one, too: all call again, and
	// with the same set.
	if f := c.pages[c.rank].fault.Fault(); f.Cause != channel.CauseNone && f.Cause != channel.CauseMasked &&
		!f.Older(first) &&
		side.Has(f.Reporter) && (f.Rank < 0 || side.Has(f.Rank)) {
		return c.waiter.Err(f, op)
	}
	if late < 0 {
		late = leader
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: still waiting for rank %d: %w", op, late, err)
	}
	if waited <= c.waiter.Timeout {
		return nil
	}
	if last.out.Has(c.rank) {
		return masked(c.everyone().Minus(last.out).Lowest())
	}
	if theirs, theirSet, ok := c.pages[late].mask.read(); ok && theirs >= target && theirSet != set {
		err := fmt.Errorf("%w: it leaves out %v, this rank %v", ErrMismatch, theirSet, set)
		if theirSet.Has(late) {
			err = fmt.Errorf("%w: it has given up its SetMask; call it again", ErrMismatch)
		}
		return &PeerError{Rank: late, Op: op, Err: err}
	}
	return &PeerError{Rank: late, Op: op, Err: ErrTimeout}
}

// outvoted returns a rank outside the side that the side has to give way to, or -1.
func (c *Comm) outvoted(side RankSet, last decision) int {
	mine := c.claim(side, last)
	others := c.everyone().Minus(side).Minus(c.died.Load())
	if member := others.Minus(last.out).Lowest(); !mine.member && member >= 0 {
		return member
	}
	for r := range others.Minus(c.left.Load()).All() {
		theirs, theirSet, ok := c.pages[r].mask.read()
		// What was decided, or has been since, is no proposal any more. One that needs a rank of
		// this side cannot be decided beside this one.
		if ok && theirs > last.generation && theirSet.Contains(side) &&
			c.claim(c.everyone().Minus(theirSet), last).beats(mine) {
			return r
		}
	}
	return -1
}

// claim is by what sides are compared.
type claim struct {
	member       bool // it has a member of the last decision
	size, lowest int  // of the living
}

func (c *Comm) claim(side RankSet, last decision) claim {
	living := side.Minus(c.died.Load())
	return claim{member: !living.Minus(last.out).Empty(), size: living.Len(), lowest: living.Lowest()}
}

func (a claim) beats(b claim) bool {
	switch {
	case a.member != b.member:
		return a.member
	case a.size != b.size:
		return a.size > b.size
	default:
		return a.lowest < b.lowest
	}
}

// lost is the error for a rank that is gone and not in the set.
func (c *Comm) lost(op string, set RankSet) error {
	if gone := c.died.Load().Minus(set).Lowest(); gone >= 0 {
		return &PeerError{Rank: gone, Op: op, Err: ErrDied}
	}
	if gone := c.left.Load().Minus(set).Lowest(); gone >= 0 {
		return &PeerError{Rank: gone, Op: op, Err: ErrLeft}
	}
	return nil
}

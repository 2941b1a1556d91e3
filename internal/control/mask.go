package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
	"github.com/weftgo/weft/internal/refusal"
)

// SetMask agrees with the ranks outside the set to go on without those in it. Entered, if there is
// one, is called when the rank has gone over to the new generation, before it looks for faults in it.
//
// An error that wraps [bootstrap.ErrMismatch] or [Config].RefusedAs is not for the others: they find it out on
// their own, and told of this rank they would leave it out.
func (r *Rank) SetMask(ctx context.Context, op string, set rankset.Set, entered func() error) error {
	target, err := r.agree(ctx, op, set)
	if errors.Is(err, bootstrap.ErrMismatch) {
		r.accuse(channel.CauseAbort, r.rank)
	}
	if err != nil {
		return err
	}
	r.mask.Store(&set)
	r.generation.Store(target)
	r.Waiter.Hide()

	// Faults of before are over. One that another rank has met since then is not.
	if f := r.own.fault.Fault(); f.Cause != channel.CauseNone && f.Older(target) {
		r.own.fault.Clear(f)
	}
	if entered != nil {
		if err := entered(); err != nil {
			return err
		}
	}
	// A rank that died since it was looked for could not say so over the fault that was there.
	if dead := r.died.Load().Minus(set).Lowest(); dead >= 0 {
		r.accuse(channel.CauseDied, dead)
	}
	for p := range set.All() {
		r.transport.Abort(rankset.Of(p), r.report(channel.Fault{Cause: channel.CauseMasked, Rank: p}))
	}
	r.logger.Info("mask", "op", op, "set", set.String(), "generation", target)
	return nil
}

// Decision says who goes on together: the members, all ranks but those that it leaves out. The ranks
// of one side propose it: each publishes the set and the generation that it aims at, one above all
// that it knows, and raises its aim when it sees a higher one. When all of a side show the same, its
// lowest rank, the leader, decides: it replaces the last decision by this one. A rank is done when it
// sees its proposal decided. What operations publish from then on counts from the new generation, so
// nothing left over from before the failure can match.
//
// These hold, whatever ranks are stopped, killed or slow:
//
//   - Decisions follow one another in one order, and generations grow in it: a decision replaces
//     only the one that its leader has judged the proposal by.
//   - A SetMask succeeds only if its proposal was decided while it lasted, with every rank of the
//     side having proposed the same.
//   - A decision shares a member with the one before it, unless all members whom it leaves out are
//     dead. So of two disjoint sides one at most is decided: the first to be is the last decision
//     when the other is judged, and that one has no member in it. A side that shares a member with
//     the decision before it takes that member away from all others: they cannot go on without it,
//     nor decide.
type Decision struct {
	Generation uint64
	Leader     int
	Out        rankset.Set // the ranks that are left out
}

// grace is how long a side that others could outvote waits for them to call. An eighth of a short
// deadline is less.
const grace = 200 * time.Millisecond

// patience is how long ranks of a side show that they want different sets before they give up: one of them may be
// about to hear of the death that the other knows of. An eighth of a short deadline is less.
const patience = time.Second

// Refuse is a SetMask of a rank that cannot make it, for a reason that the other ranks get in its place. It clears no
// failure, and is none.
func (r *Rank) Refuse(why error) {
	target := r.first()
	for p, v := range r.views {
		if v == nil || p == r.rank {
			continue
		}
		// An aim that is given up is no more than what that rank never aims at again.
		if theirs, set, ok := v.intent.read(); ok && !set.Has(p) {
			target = max(target, theirs)
		}
	}
	r.object(target, refusedMark+why.Error())
}

// An objection begins with what it is.
const (
	refusedMark  = "!"
	mismatchMark = "="
)

// object gives a proposal up, for a reason of all ranks that would have to support it.
func (r *Rank) object(target uint64, words string) {
	r.own.intent.write(target, r.transport.Decision().Generation, rankset.Of(r.rank), words)
	r.transport.Publish(Intent)
}

// objection is the error of a rank of the side that objects to the SetMask which aims at the generation first or at a
// later one, if one does. Whoever calls late gets it, too: it was this call that the rank objected to.
func (r *Rank) objection(op string, side rankset.Set, first uint64) error {
	for p := range side.Without(r.rank).All() {
		target, words := r.views[p].intent.objection()
		if words == "" || target < first {
			continue
		}
		if words, ok := strings.CutPrefix(words, mismatchMark); ok {
			return fmt.Errorf("%s: %w %s", op, bootstrap.ErrMismatch, words)
		}
		err := refusal.There(r.refused, op, strings.TrimPrefix(words, refusedMark))
		return &channel.PeerError{Rank: p, Op: op, Err: err}
	}
	return nil
}

// difference says in words what ranks want that aim at the same generation, if they want different things. It reads
// those that some would leave out, too: all say the same.
func (r *Rank) difference(target uint64) string {
	camps := rankset.CampsOf(func(yield func(int, rankset.Set) bool) {
		for p := range r.everyone().All() {
			theirs, set, ok := r.views[p].intent.read()
			if ok && theirs == target && !set.Has(p) && !yield(p, set) {
				return
			}
		}
	})
	if !camps.Differ() {
		return ""
	}
	return "on the ranks to leave out: " + camps.On(listed)
}

func listed(set rankset.Set) string {
	if set.Empty() {
		return "none"
	}
	return set.String()
}

// first is the lowest generation that a SetMask may aim at.
func (r *Rank) first() uint64 {
	first := max(r.own.intent.target.Load(), r.transport.Decision().Generation) + 1
	if f := r.own.fault.Fault(); f.Cause != channel.CauseNone {
		first = f.After(first) // faults of other ranks' SetMasks, from which they have returned
	}
	return first
}

// agree returns the generation in which all ranks outside the set go on without those in it.
func (r *Rank) agree(ctx context.Context, op string, set rankset.Set) (uint64, error) {
	side := r.everyone().Minus(set)
	leads := side.Lowest() == r.rank
	first := r.first()
	target := first
	r.propose(target, set)
	aims := aims{rank: r.rank, peers: make([]aim, r.size)}
	differs := time.Duration(-1) // when others wanted another set
	var watch channel.Stopwatch
	for nap := r.Pace(20 * time.Microsecond); ; nap = min(2*nap, r.Pace(time.Millisecond)) {
		waited := watch.Look()
		last := r.transport.Decision()
		if last.Out == set && last.Generation >= first {
			if last.Generation < target {
				r.propose(target, rankset.Of(r.rank)) // as after an error
			}
			return last.Generation, nil
		}
		late, against, highest, after := aims.look(r.views, side, target, set)
		if after > last.Generation && ctx.Err() == nil && waited <= r.Waiter.Timeout {
			// Another rank aims beyond a decision that this rank has yet to see: it may be the one
			// that this call waits for, and the other's that of the call after it.
			time.Sleep(nap)
			continue
		}
		if !against {
			differs = -1
		} else if differs < 0 {
			differs = waited
		}
		err := r.refusal(ctx, op, last, first, target, set, late, &watch)
		words := ""
		if err == nil && against && waited-differs > min(patience, r.Waiter.Timeout/8) {
			if words = r.difference(target); words != "" {
				err = fmt.Errorf("%s: %w %s", op, bootstrap.ErrMismatch, words)
			}
		}
		if highest = max(highest, last.Generation+1); err == nil && highest > target {
			target, nap = highest, r.Pace(20*time.Microsecond)
			r.propose(target, set)
			continue
		}
		if err == nil && leads && late < 0 {
			mine := r.claim(side, last)
			if rival := r.claim(set.Minus(last.Out).Minus(r.left.Load()), last); waited > min(grace, r.Waiter.Timeout/8) ||
				!rival.beats(mine) {
				r.transport.Decide(last.Generation, Decision{Generation: target, Leader: r.rank, Out: set})
				// Until the outcome shows, the proposal may be decided at any moment, and is not given up.
				for r.transport.Decision().Generation == last.Generation && ctx.Err() == nil &&
					watch.Look() <= r.Waiter.Timeout && r.transport.Decides(set) {
					time.Sleep(nap)
				}
				continue
			}
		}
		if err != nil {
			// What was wanted must not be taken for agreement later. No rank wants a set that it is
			// in itself.
			if words != "" {
				r.object(target, mismatchMark+words)
			} else {
				r.propose(max(target, highest), rankset.Of(r.rank))
			}
			if last = r.transport.Decision(); last.Out == set && last.Generation >= first { // the leader was faster
				return last.Generation, nil
			}
			return 0, err
		}
		time.Sleep(nap)
	}
}

// Pace is how often a rank looks at all others: as often as it says where they are few. Ranks of one
// process would otherwise do nothing but look at each other, and at all others.
func (r *Rank) Pace(few time.Duration) time.Duration {
	return few * time.Duration(1+r.inProcess*r.size/4096)
}

// propose shows the others what this rank wants.
func (r *Rank) propose(target uint64, set rankset.Set) {
	r.own.intent.write(target, r.transport.Decision().Generation, set, "")
	r.transport.Publish(Intent)
}

// aims is what the ranks of a side propose, as one call of SetMask has seen it. With many ranks most
// looks find nothing new, so a look reads of each rank only whether its intent has changed.
type aims struct {
	rank   int // that looks
	target uint64
	set    rankset.Set
	peers  []aim // by rank

	highest, after uint64 // of all that was seen; they only grow
}

// aim is what a rank proposes, seen from one that proposes something itself.
type aim struct {
	changed uint64
	is      stance
}

type stance uint8

const (
	unread  stance = iota
	silent         // it proposes nothing as high, for it has not called
	other          // it proposes higher, or leaves out this rank, or has given up
	against        // it proposes another set, in which this rank would go on
	same
)

// look returns the highest generation that any rank of a side aims at, and the first that does not
// propose the set with this target, or -1. Those that propose nothing, for they have not called, come
// before those that propose another set. Differs says whether any wants another set with this rank. After is the
// last decision that any of the side knew of.
func (a *aims) look(views []*page, side rankset.Set, target uint64, set rankset.Set,
) (late int, differs bool, highest, after uint64) {
	if a.target != target || a.set != set {
		clear(a.peers)
		a.target, a.set = target, set
	}
	late = -1
	quiet := false
	for p := range side.All() {
		peer, intent := &a.peers[p], &views[p].intent
		if changed := intent.changed.Load(); peer.is == unread || peer.changed != changed {
			theirs, theirSet, ok := intent.read()
			a.highest, a.after = max(a.highest, theirs), max(a.after, intent.after.Load())
			peer.changed, peer.is = changed, other
			switch {
			case !ok || theirs < target:
				peer.is = silent
			case theirs == target && theirSet == set:
				peer.is = same
			case theirs == target && !theirSet.Has(p) && !theirSet.Has(a.rank):
				peer.is = against
			}
			if !ok {
				peer.changed-- // it is being written
			}
		}
		differs = differs || peer.is == against
		if peer.is == silent && !quiet || (peer.is == other || peer.is == against) && late < 0 {
			late, quiet = p, peer.is == silent
		}
	}
	return late, differs, a.highest, a.after
}

// proposes reports whether a rank shows this proposal.
func (r *Rank) proposes(rank int, target uint64, set rankset.Set) bool {
	theirs, theirSet, ok := r.views[rank].intent.read()
	return ok && theirs == target && theirSet == set
}

// refusal is why a proposal is given up, if it is. Late is who does not support it, or -1.
func (r *Rank) refusal(ctx context.Context, op string, last Decision, first, target uint64, set rankset.Set,
	late int, watch *channel.Stopwatch,
) error {
	side, waited := r.everyone().Minus(set), watch.Look()
	masked := func(by int) error {
		err := fmt.Errorf("%w: rank %d goes on without it; wait to be taken back with SetMask without that "+
			"rank in the set", channel.ErrMasked, by)
		return &channel.PeerError{Rank: r.rank, Op: op, Err: err}
	}
	leader := side.Lowest()
	// As long as the leader holds on to the proposal it alone gives it up to others: it may be
	// about to decide.
	if by := r.outvoted(side, last); by >= 0 && (r.rank == leader || !r.proposes(leader, target, set)) {
		return masked(by)
	}
	if err := r.Lost(op, set); err != nil {
		return err
	}
	if !r.transport.Decides(set) {
		err := fmt.Errorf("%w: it reaches at most half of the ranks that were to go on, and the others may go on "+
			"without it; wait until it reaches them, or end it", channel.ErrMasked)
		return &channel.PeerError{Rank: r.rank, Op: op, Err: err}
	}
	if err := r.objection(op, side, first); err != nil {
		return err
	}
	// What another rank of the side has met in its SetMask ends this one, too: all call again, and
	// with the same set.
	if f := r.own.fault.Fault(); f.Cause != channel.CauseNone && f.Cause != channel.CauseMasked &&
		!f.Older(first) &&
		side.Has(f.Reporter) && (f.Rank < 0 || side.Has(f.Rank)) {
		return r.Waiter.Err(f, op)
	}
	if late < 0 {
		late = leader
	}
	r.Waiter.ReportWait(op, late, watch)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: still waiting for rank %d: %w", op, late, err)
	}
	if waited <= r.Waiter.Timeout {
		return nil
	}
	if last.Out.Has(r.rank) {
		return masked(r.everyone().Minus(last.Out).Lowest())
	}
	if theirs, theirSet, ok := r.views[late].intent.read(); ok && theirs >= target && theirSet != set {
		err := fmt.Errorf("%w: it leaves out %v, this rank %v", bootstrap.ErrMismatch, theirSet, set)
		if theirSet.Has(late) {
			err = fmt.Errorf("%w: it has given up its SetMask; call it again", bootstrap.ErrMismatch)
		}
		return &channel.PeerError{Rank: late, Op: op, Err: err}
	}
	return r.Waiter.Err(channel.Fault{Cause: channel.CauseTimeout, Rank: late, Reporter: r.rank}, op)
}

// outvoted returns a rank outside the side that the side has to give way to, or -1.
func (r *Rank) outvoted(side rankset.Set, last Decision) int {
	mine := r.claim(side, last)
	others := r.everyone().Minus(side).Minus(r.died.Load())
	if member := others.Minus(last.Out).Lowest(); !mine.member && member >= 0 {
		return member
	}
	for p := range others.Minus(r.left.Load()).All() {
		theirs, theirSet, ok := r.views[p].intent.read()
		// What was decided, or has been since, is no proposal any more. One that needs a rank of
		// this side cannot be decided beside this one.
		if ok && theirs > last.Generation && theirSet.Contains(side) &&
			r.claim(r.everyone().Minus(theirSet), last).beats(mine) {
			return p
		}
	}
	return -1
}

// claim is by what sides are compared.
type claim struct {
	member       bool // it has a member of the last decision
	size, lowest int  // of the living
}

func (r *Rank) claim(side rankset.Set, last Decision) claim {
	living := side.Minus(r.died.Load())
	return claim{member: !living.Minus(last.Out).Empty(), size: living.Len(), lowest: living.Lowest()}
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

// Lost is the error for a rank that is gone and not in the set.
func (r *Rank) Lost(op string, set rankset.Set) error {
	if gone := r.died.Load().Minus(set).Lowest(); gone >= 0 {
		return r.Waiter.Err(channel.Fault{Cause: channel.CauseDied, Rank: gone, Reporter: r.rank}, op)
	}
	if gone := r.left.Load().Minus(set).Lowest(); gone >= 0 {
		return r.Waiter.Err(channel.Fault{Cause: channel.CauseLeft, Rank: gone, Reporter: r.rank}, op)
	}
	return nil
}

package control

import (
	"errors"
	"time"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/filelimit"
	"github.com/weftgo/weft/internal/rankset"
)

// NewsTime is how long a rank that has lost its connection to a peer waits for news of why: a connection ends before
// the end of its process is known, which takes a few milliseconds. What loses connections tells within the rest of a
// second.
const NewsTime = 400 * time.Millisecond

// Failed reports whether the abort word is set. What that means is for Fault to say.
func (r *Rank) Failed() bool { return r.own.fault.Fault().Cause != channel.CauseNone }

// Fault says what the abort word means: nothing if it concerns a rank that is masked by now, in
// which case the word is emptied. Recorded, if it is not nil, is asked for the fault that a wait on
// the device has met: it goes into the word, here and at the others.
func (r *Rank) Fault(recorded func() channel.Fault) channel.Fault {
	own := &r.own.fault
	for {
		f := own.Fault()
		if f.Cause == channel.CauseNone {
			// A death among the unmasked that was hidden behind an earlier fault.
			dead := r.died.Load().Minus(r.Mask()).Lowest()
			switch {
			case dead >= 0:
				r.accuse(channel.CauseDied, dead)
			case recorded != nil:
				r.Tell(recorded())
			default:
				return f
			}
			continue
		}
		// A rank that was left behind and wakes up late may still accuse others: its word counts
		// for nothing. But those whom this rank has left out may by now go on without it.
		over := r.Masked(f.Reporter) || f.Rank != r.rank && r.Masked(f.Rank)
		if f.Older(r.generation.Load()) || over && !(f.Cause == channel.CauseMasked && r.LeftOut()) {
			own.Clear(f)
			continue
		}
		return f
	}
}

// FaultOf is the fault that the others are to be told of when an operation of this rank's has met
// the error: of no cause if they know.
func (r *Rank) FaultOf(err error) channel.Fault {
	gaveUp := channel.Fault{Cause: channel.CauseAbort, Rank: r.rank}
	peer, ok := errors.AsType[*channel.PeerError](err)
	switch {
	case filelimit.Reached(err):
		return channel.Fault{Cause: channel.CauseFiles, Rank: r.rank}
	case !ok:
		// The caller's context ended: this rank alone is to blame.
		return gaveUp
	case errors.Is(err, channel.ErrDied), errors.Is(err, channel.ErrAborted), errors.Is(err, channel.ErrMasked):
		return channel.Fault{}
	case errors.Is(err, channel.ErrLeft):
		return channel.Fault{Cause: channel.CauseLeft, Rank: peer.Rank}
	case errors.Is(err, channel.ErrTimeout) && peer.Rank < 0:
		return channel.Fault{} // they know as far as they are in the cycle or wait for it
	case errors.Is(err, channel.ErrTimeout):
		return channel.Fault{Cause: channel.CauseTimeout, Rank: peer.Rank}
	default:
		// What a peer offers is not what was agreed, or cannot be had here: this rank is the one
		// that gives up.
		return gaveUp
	}
}

// Tell tells every rank that can be reached of a fault. A rank that was left out, and has found out
// in this way only, tells itself alone.
func (r *Rank) Tell(f channel.Fault) {
	if r.LeftOut() {
		r.accuse(channel.CauseMasked, r.rank)
		return
	}
	f = r.report(f)
	r.own.fault.Abort(f)
	r.pass(f)
}

// pass hands a fault to the others.
func (r *Rank) pass(f channel.Fault) {
	r.logger.Warn("fault", "peer", f.Rank, "cause", f.Cause.String())
	var peers rankset.Set
	for p, v := range r.views {
		if v != nil && p != r.rank && !r.Masked(p) && !r.maskedBy(v) {
			peers = peers.With(p)
		}
	}
	r.transport.Abort(peers, f)
}

// Stop is a failure of this rank alone, in its present generation: others meet it by themselves. tell tells those that
// did not, unless they have gone on to the next.
func (r *Rank) Stop() (tell func()) {
	f := channel.Fault{
		Cause: channel.CauseAbort, Rank: r.rank, Reporter: r.rank, Generation: r.generation.Load(),
	}
	r.own.fault.Abort(f)
	return func() { r.pass(f) }
}

// MarkLeft notes that a peer has left in good order.
func (r *Rank) MarkLeft(peer int) { r.left.Add(peer) }

// MarkDied notes that a peer has died. It is a fault of the rank's unless the peer is masked.
func (r *Rank) MarkDied(peer int, why error) {
	r.died.Add(peer)
	if !r.Masked(peer) {
		r.logger.Warn("rank died", "peer", peer, "error", why)
		r.accuse(channel.CauseDied, peer)
	}
}

// accuse sets this rank's own abort word.
func (r *Rank) accuse(cause channel.Cause, rank int) {
	r.own.fault.Abort(r.report(channel.Fault{Cause: cause, Rank: rank}))
}

// report signs and dates a fault. A rank that is about to go on with others dates it with the
// generation that it has told them.
func (r *Rank) report(f channel.Fault) channel.Fault {
	f.Reporter, f.Generation = r.rank, r.own.intent.target.Load()
	return f
}

// LeftOut reports whether the others have decided to go on without this rank.
func (r *Rank) LeftOut() bool { return r.transport.Decision().Out.Has(r.rank) }

// maskedBy reports whether the owner of a page goes on without this rank.
func (r *Rank) maskedBy(p *page) bool {
	return p.intent.target.Load() > r.generation.Load() && p.intent.set.Has(r.rank)
}

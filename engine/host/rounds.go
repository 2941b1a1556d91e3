package host

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
	"github.com/weftgo/weft/trace"
)

// Config describes the owner of [Rounds]: a group, say, or a handle.
type Config struct {
	// Kind is what errors call the owner: "group".
	Kind string
	// Ring is about how many bytes of each rank's memory hold payloads of more than 40 bytes. The
	// longest payload, [Rounds.Room], takes a [RingShare]-th of it; it has room for a refusal in any
	// case.
	Ring int
	// Own is how many bytes of each rank's memory the owner uses by itself: see [Rounds.OwnBytes].
	Own int
	// Differs says how ranks' calls differ: "rank 2 calls barrier, ranks 0-1 broadcast". It must take any word for a
	// call.
	Differs func(calls rankset.Camps[uint64]) string
	// Within makes rounds of each host's ranks alone. Those of several hosts talk by package mirror.
	Within bool
	// Lines is how many values may be on their way between two ranks of different hosts, beside those of rounds.
	Lines int
	// Chooses says the same of their choices, if the owner makes any: see [Rounds.Choice].
	Chooses func(choices rankset.Camps[uint32]) string
}

// Rounds is how the ranks of an owner talk: in rounds, numbered alike on every rank and never again.
// In each a rank fills its header and publishes it, then reads the headers of the others.
//
// Invariant: a rank fills the header of round s only when it has read every header of round s-2. The
// package documentation derives from it that no rank reads what is overwritten.
//
// The methods are for one goroutine at a time.
type Rounds struct {
	Comm   *weft.Comm
	Window *weft.Window // the pads; the owner closes it
	Live   []int        // ranks that take part, ascending
	Self   int          // this rank's index among them

	// Choice is compared as the call is, and published with it. It is for how to do the call, if the caller
	// says so.
	Choice uint32

	// Step, if a test sets it, is called when this rank has published a round, and when it has seen
	// that of every rank.
	Step func()

	config  Config
	far     *far // nil where all ranks are of one host
	waiter  *channel.Waiter
	waiters [2]channel.Waiter // for other waits, and for messages
	pads    []*pad            // by rank; nil for ranks masked when the owner was made
	mine    *pad
	cursor  int // in this rank's ring
	numbers channel.Sequence

	tape   *tape  // nil: nothing is recorded
	steps  uint16 // of a recorded operation, from which on these rounds are
	opened uint64 // the first round of the operation that began last
}

// New makes the rounds of an owner. It is collective, and allocates all their memory.
func New(ctx context.Context, comm *weft.Comm, c Config) (*Rounds, error) {
	r := &Rounds{
		Comm: comm, config: c, pads: make([]*pad, comm.Size()), Live: make([]int, 0, comm.Size()),
	}
	w := comm.Operations().WaiterOf(c.Kind)
	r.waiters = [2]channel.Waiter{*w, *w}
	r.waiters[1].Message = true
	r.Messages(false)
	ring := max(c.Ring, RingShare*2*RefusalBytes) &^ (channel.Stride - 1)
	var err error
	bytes := ringAt + ring + c.Own
	if comm.Operations().Spans() && !c.Within {
		if r.far, err = newFar(ctx, comm, c, ring, bytes); err != nil {
			return nil, err
		}
		r.Window = r.far.mirrors.Window
	} else if r.Window, err = comm.Operations().AllocHost(ctx, bytes); err != nil {
		return nil, err
	}
	for p := range r.pads {
		if mem := r.Window.Peer(p); mem != nil {
			r.pads[p] = newPad(mem[:bytes:bytes], ring)
		}
	}
	r.mine = r.pads[comm.Rank()]
	if !c.Within {
		r.tape = newTape(r)
	}
	return r, nil
}

// Begin is the first thing that an operation does. It returns the communicator's failure, if there
// is one, and follows the communicator to its generation: after [weft.Comm.SetMask] no rank is inside
// an older operation, and what such an operation left behind has lower numbers than all that ranks
// publish from now on. All that this rank had written to ranks of other hosts before has landed there, whoever
// wrote it.
func (r *Rounds) Begin(op string) error {
	err := r.Resume(op)
	if err == nil && r.tape != nil {
		r.opened = r.Next()
		if r.steps == 0 {
			r.tape.begin(op)
		}
	}
	return err
}

// Resume is Begin for the second half of an operation.
func (r *Rounds) Resume(op string) error {
	if err := r.Comm.Operations().Begin(op); err != nil {
		return err
	}
	if !r.numbers.Begin(r.Comm.Operations().Generation()) && len(r.Live) > 0 {
		return nil
	}
	r.Live = r.Live[:0]
	for rank := range r.pads {
		if r.Comm.Masked(rank) || r.config.Within && r.Comm.Host(rank) != r.Comm.Host(r.Comm.Rank()) {
			continue
		}
		if !r.has(rank) {
			r.Live = r.Live[:0]
			return fmt.Errorf("%s: rank %d was masked when the %s was made: %w; make a new %s", op, rank,
				r.config.Kind, weft.ErrMasked, r.config.Kind)
		}
		if rank == r.Comm.Rank() {
			r.Self = len(r.Live)
		}
		r.Live = append(r.Live, rank)
	}
	if r.far != nil {
		if err := r.far.begin(r, op); err != nil {
			r.Live = r.Live[:0]
			return err
		}
	}
	return nil
}

// has says whether neither this rank nor that one was masked when the owner was made.
func (r *Rounds) has(rank int) bool {
	if r.far != nil && r.far.isFar(rank) {
		return r.far.mirrors.Has(rank)
	}
	return r.pads[rank] != nil
}

// Waiter waits on behalf of the owner, for other counters than those of rounds.
func (r *Rounds) Waiter() *channel.Waiter { return r.waiter }

// Messages says whether the waits from now on are for messages, which the errors of ranks that wait for each other say.
func (r *Rounds) Messages(are bool) {
	if r.waiter = &r.waiters[0]; are {
		r.waiter = &r.waiters[1]
	}
}

// Next is the number of the round that this rank publishes next.
func (r *Rounds) Next() uint64 { return r.numbers.Last() + 1 }

// Last is the number of the round that this rank published last.
func (r *Rounds) Last() uint64 { return r.numbers.Last() }

// Room is the length of the longest payload of a round.
func (r *Rounds) Room() int { return len(r.mine.ring) / RingShare }

// Fill returns the memory for the payload of the next round, of n bytes and at most [Rounds.Room].
func (r *Rounds) Fill(n int) []byte {
	h := r.mine.at(r.Next())
	if r.far != nil {
		r.far.fill(n)
	}
	if n <= inLineBytes {
		return h.payload(n)
	}
	at := r.cursor
	if at+n > len(r.mine.ring) {
		at = 0
	}
	r.cursor = (at + n + 63) &^ 63
	*h.offset() = uint64(at)
	return r.mine.ring[at:][:n:n]
}

// Payload is what a live rank said in a round, of n bytes on every rank.
func (r *Rounds) Payload(rank int, round uint64, n int) []byte { return r.pads[rank].payload(round, n) }

// OwnBytes is the part of a rank's memory that the owner uses itself, or nil if the rank was masked
// when the owner was made.
func (r *Rounds) OwnBytes(rank int) []byte {
	if r.far != nil && r.far.isFar(rank) {
		if !r.far.mirrors.Has(rank) {
			return nil
		}
		return r.far.own(rank)
	}
	if p := r.pads[rank]; p != nil {
		return p.own
	}
	return nil
}

// Open publishes the next round, which opens an operation with a call, and returns its number. A
// call is a word below [RefusedCall]; equal words are equal calls. The round has the payload that
// Fill or PutOperands has left, if any.
func (r *Rounds) Open(call uint64) (round uint64) {
	h := r.mine.at(r.Next())
	*h.call, *h.choice = call, r.Choice
	return r.Publish()
}

// Refuse is Open for a rank that cannot take part: peers learn why.
func (r *Rounds) Refuse(err error) (round uint64) {
	return r.Open(RefusedCall | uint64(PutRefusal(r.Fill(RefusalBytes), err)))
}

// Publish publishes the next round and returns its number.
func (r *Rounds) Publish() (round uint64) {
	if r.tape != nil {
		r.tape.publishes(r)
	}
	h := r.mine.at(r.Next())
	round = r.numbers.Next()
	h.round.Publish(round)
	if r.far != nil {
		r.far.publish(r, round)
	}
	if r.Step != nil {
		r.Step()
	}
	return round
}

// Await waits until every live rank has published the round.
func (r *Rounds) Await(ctx context.Context, op string, round uint64) error {
	return r.await(ctx, op, round, nil)
}

func (r *Rounds) await(ctx context.Context, op string, round uint64, waits []int64) error {
	if r.far != nil {
		if err := r.far.await(ctx, r, op, round, waits); err != nil {
			return err
		}
	}
	for _, p := range r.Live {
		c := r.pads[p].at(round).round
		if c.Load() >= round {
			if r.tape != nil && r.far == nil {
				r.tape.sees(r, p, round)
			}
			continue
		}
		if r.tape != nil {
			r.tape.hand()
		}
		var begun time.Time
		if waits != nil {
			begun = time.Now()
		}
		err := r.waiter.Wait(ctx, c, round, op, p)
		if waits != nil {
			waits[p] += int64(time.Since(begun))
		}
		if err != nil {
			return r.Comm.Operations().Fail(err)
		}
		if r.tape != nil {
			r.tape.sees(r, p, round)
		}
	}
	if r.tape != nil {
		r.tape.stamp()
	}
	if r.Step != nil {
		r.Step()
	}
	return nil
}

// Leave says that this rank has finished reading the operands of the operation that it opened in its
// last round.
func (r *Rounds) Leave() {
	if t := r.tape; t != nil && t.open && t.begun == 0 {
		t.add(trace.Stored, 0, -1, trace.Now())
	}
	r.mine.left.Publish(r.numbers.Last())
}

// AwaitLeft waits until every live rank of this host has left the operation that opened in the round, and until what
// was shipped to others has left this rank's memory. A caller may then change the operands that peers read where
// they lie.
func (r *Rounds) AwaitLeft(ctx context.Context, op string, round uint64) error {
	for _, p := range r.Live {
		c := r.pads[p].left
		if r.far != nil {
			if r.far.isFar(p) || c.Load() >= round {
				continue
			}
			if err := r.far.until(ctx, r, op, p, time.Sleep, func() bool { return c.Load() >= round }); err != nil {
				return err
			}
			continue
		}
		if err := r.waiter.Wait(ctx, r.pads[p].left, round, op, p); err != nil {
			return r.Comm.Operations().Fail(err)
		}
	}
	return r.AwaitShipped(ctx, op)
}

// AwaitCalls waits until every live rank has opened the operation in the round, and compares their
// calls. It fails on every rank, or on none: if ranks refused, with own on a rank that did and with
// the refusal of the lowest one on the others; if calls differ, with a [*weft.PeerError] that wraps
// [weft.ErrMismatch] and names the lowest rank whose call is not that of most, or none where most do not agree.
//
// Where waits is not nil, the nanoseconds of the wait for each rank are added to its element.
func (r *Rounds) AwaitCalls(ctx context.Context, op string, round uint64, own error, waits []int64) error {
	if err := r.await(ctx, op, round, waits); err != nil {
		return err
	}
	err := r.compare(op, round, own)
	if err != nil && r.tape != nil {
		r.tape.hand() // it does not end, and this may be the last of the lane
	}
	return err
}

// Calls gives the calls of all live ranks in the round, which they have opened.
func (r *Rounds) Calls(round uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, p := range r.Live {
			if !yield(*r.pads[p].at(round).call) {
				return
			}
		}
	}
}

// compare compares the calls of a round. Every rank compares the same words, and so they fail
// together.
func (r *Rounds) compare(op string, round uint64, own error) error {
	h := r.mine.at(round)
	want, choice := *h.call, *h.choice
	refused, differ := -1, false
	for _, p := range r.Live {
		h := r.pads[p].at(round)
		if *h.call&RefusedCall != 0 && refused < 0 {
			refused = p
		}
		differ = differ || *h.call != want || *h.choice != choice
	}
	if refused < 0 && !differ {
		return nil
	}
	// A rank that was left out while it stood still may be looking at later rounds of the others.
	if err := r.Comm.Operations().Begin(op); err != nil {
		return err
	}
	if own != nil {
		return own
	}
	if refused >= 0 {
		call := *r.pads[refused].at(round).call
		return TakeRefusal(refused, op, uint32(call&^RefusedCall), r.Payload(refused, round, RefusalBytes))
	}
	calls := campsOf(r, round, func(h *header) uint64 { return *h.call })
	culprit, words := calls.Culprit(), ""
	if !calls.Differ() && r.config.Chooses != nil {
		choices := campsOf(r, round, func(h *header) uint32 { return *h.choice })
		culprit, words = choices.Culprit(), r.config.Chooses(choices)
	} else {
		words = r.config.Differs(calls)
	}
	return &weft.PeerError{Rank: culprit, Op: op, Err: fmt.Errorf("%w: %s", weft.ErrMismatch, words)}
}

func campsOf[T comparable](r *Rounds, round uint64, said func(h *header) T) rankset.Camps[T] {
	return rankset.CampsOf(func(yield func(int, T) bool) {
		for _, p := range r.Live {
			if !yield(p, said(r.pads[p].at(round))) {
				return
			}
		}
	})
}

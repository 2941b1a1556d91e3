package host

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
)

// Rounds is how the ranks of a group talk: in rounds, numbered alike on every rank and never again.
// In each a rank fills its slot and publishes it, then reads the slots of the others.
//
// A rank may publish one round before it has read the one before, not two: it fills the slot of
// round s when it has read all of round s-2. See the package documentation for why nobody then
// reads what is overwritten.
type Rounds struct {
	Comm   *weft.Comm
	waiter *channel.Waiter
	kind   string // of the owner, in errors: "group"
	words  func(call uint64) string
	pads   []*Pad // by rank; nil for ranks masked when the owner was made
	mine   *Pad
	cursor int // in this rank's ring

	numbers channel.Sequence // the last one is of the round that this rank published last
	Live    []int            // ranks that take part, ascending
	Own     int              // this rank's place among them

	// Step, when a test has set it, is called when this rank has published a round and when it has
	// seen everyone's.
	Step func()
}

// NewRounds makes the rounds of an owner of a kind ("group"), whose window each rank has for its
// pad. words says a call in words.
func NewRounds(comm *weft.Comm, w *weft.Window, kind string, words func(call uint64) string) *Rounds {
	r := &Rounds{
		Comm: comm, kind: kind, words: words, waiter: comm.Operations().WaiterOf(kind), pads: make([]*Pad, comm.Size()),
	}
	for p := range r.pads {
		if mem := w.Peer(p); mem != nil {
			r.pads[p] = newPad(mem)
		}
	}
	r.mine = r.pads[comm.Rank()]
	return r
}

// Sync follows the communicator to its generation: ranks have agreed to go on after a failure,
// nobody is inside an older operation, and what it left behind has lower numbers than all that is
// published from now on.
func (r *Rounds) Sync(op string) error {
	if !r.numbers.Begin(r.Comm.Operations().Generation()) && r.Live != nil {
		return nil
	}
	r.Live = r.Live[:0]
	for p, b := range r.pads {
		if r.Comm.Masked(p) {
			continue
		}
		if b == nil {
			r.Live = nil
			return fmt.Errorf("%s: rank %d was masked when the %s was made: %w; make a new %s", op, p, r.kind,
				weft.ErrMasked, r.kind)
		}
		if p == r.Comm.Rank() {
			r.Own = len(r.Live)
		}
		r.Live = append(r.Live, p)
	}
	return nil
}

// Next is the slot of the round that this rank publishes next.
func (r *Rounds) Next() *Slot { return &r.mine.slots[(r.numbers.Last()+1)%Slots] }

// Fill returns the memory for the n bytes of payload of the next round, of at most the ring's
// share.
func (r *Rounds) Fill(n int) []byte {
	s := r.Next()
	if n <= NearBytes {
		return s.InLine(n)
	}
	at := r.cursor
	if at+n > len(r.mine.Ring) {
		at = 0
	}
	r.cursor = (at + n + 63) &^ 63
	*s.RingAt() = uint64(at)
	return r.mine.Ring[at:][:n:n]
}

// Publish ends the filling of the next slot and returns its round.
func (r *Rounds) Publish() uint64 {
	s := r.Next()
	round := r.numbers.Next()
	s.round.Publish(round)
	if r.Step != nil {
		r.Step()
	}
	return round
}

// Pad is a rank's memory, or nil if the rank was masked when the owner was made.
func (r *Rounds) Pad(rank int) *Pad { return r.pads[rank] }

// Payload is what rank said in a round.
func (r *Rounds) Payload(rank int, round uint64, n int) []byte {
	return r.pads[rank].payload(round, n)
}

// At is rank's slot of a round.
func (r *Rounds) At(rank int, round uint64) *Slot { return &r.pads[rank].slots[round%Slots] }

// Last is the round that this rank published last.
func (r *Rounds) Last() uint64 { return r.numbers.Last() }

// Room is the length of the longest payload of a round.
func (r *Rounds) Room() int { return len(r.mine.Ring) / RingShare }

// Await waits until every rank has published the round.
func (r *Rounds) Await(ctx context.Context, op string, round uint64) error {
	for _, p := range r.Live {
		c := r.At(p, round).round
		if c.Load() >= round {
			continue
		}
		if err := r.waiter.Wait(ctx, c, round, op, p); err != nil {
			return r.Comm.Operations().Fail(err)
		}
	}
	if r.Step != nil {
		r.Step()
	}
	return nil
}

// Refuse fills the next slot with the reason why this rank cannot take part.
func (r *Rounds) Refuse(err error) {
	*r.Next().Call = RefusedCall | uint64(PutRefusal(r.Fill(RefusalBytes), err))
}

// Compare compares the calls of a round that opened an operation. Every rank compares the same
// words, and so returns an error, if any does.
func (r *Rounds) Compare(op string, round uint64, own error) error {
	want := *r.At(r.Live[r.Own], round).Call
	same := want&RefusedCall == 0
	for _, p := range r.Live {
		same = same && *r.At(p, round).Call == want
	}
	if same {
		return nil
	}
	// A rank that was left out while it stood still may be looking at later rounds of the others.
	if err := r.Comm.Operations().Begin(op); err != nil {
		return err
	}
	if own != nil {
		return own
	}
	for _, p := range r.Live {
		if call := *r.At(p, round).Call; call&RefusedCall != 0 {
			return TakeRefusal(p, op, max(1, uint32(call&^RefusedCall)), r.Payload(p, round, RefusalBytes))
		}
	}
	first := r.Live[0]
	a := *r.At(first, round).Call
	for _, p := range r.Live {
		if b := *r.At(p, round).Call; b != a {
			return fmt.Errorf("%s: %w: rank %d calls %s, rank %d %s", op, weft.ErrMismatch, first, r.words(a), p, r.words(b))
		}
	}
	return fmt.Errorf("%s: %w", op, weft.ErrMismatch)
}

package collective

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
)

// rounds is how the ranks of a group talk: in rounds, numbered alike on every rank and never again.
// In each a rank fills its slot and publishes it, then reads the slots of the others.
//
// A rank may publish one round before it has read the one before, not two: it fills the slot of
// round s when it has read all of round s-2. See the package documentation for why nobody then
// reads what is overwritten.
type rounds struct {
	comm   *weft.Comm
	waiter *channel.Waiter
	kind   string // of the owner, in errors: "group"
	words  func(call uint64) string
	boards []*board // by rank; nil for ranks masked when the owner was made
	mine   *board
	cursor int // in this rank's ring

	numbers channel.Sequence // the last one is of the round that this rank published last
	live    []int            // ranks that take part, ascending
	own     int              // this rank's place among them

	// step, when a test has set it, is called when this rank has published a round and when it has
	// seen everyone's.
	step func()
}

// newRounds makes the rounds of an owner of a kind ("group"), whose window each rank has for its
// board. words says a call in words.
func newRounds(comm *weft.Comm, w *weft.Window, kind string, words func(call uint64) string) *rounds {
	r := &rounds{
		comm: comm, kind: kind, words: words, waiter: comm.WaiterOf(kind), boards: make([]*board, comm.Size()),
	}
	for p := range r.boards {
		if mem := w.Peer(p); mem != nil {
			r.boards[p] = newBoard(mem)
		}
	}
	r.mine = r.boards[comm.Rank()]
	return r
}

// sync follows the communicator to its generation: ranks have agreed to go on after a failure,
// nobody is inside an older operation, and what it left behind has lower numbers than all that is
// published from now on.
func (r *rounds) sync(op string) error {
	if !r.numbers.Begin(r.comm.Generation()) && r.live != nil {
		return nil
	}
	r.live = r.live[:0]
	for p, b := range r.boards {
		if r.comm.Masked(p) {
			continue
		}
		if b == nil {
			r.live = nil
			return fmt.Errorf("%s: rank %d was masked when the %s was made: %w; make a new %s", op, p, r.kind,
				weft.ErrMasked, r.kind)
		}
		if p == r.comm.Rank() {
			r.own = len(r.live)
		}
		r.live = append(r.live, p)
	}
	return nil
}

// next is the slot of the round that this rank publishes next.
func (r *rounds) next() *slot { return &r.mine.slots[(r.numbers.Last()+1)%slots] }

// fill returns the memory for the n bytes of payload of the next round, of at most the ring's
// share.
func (r *rounds) fill(n int) []byte {
	s := r.next()
	if n <= nearBytes {
		return s.inLine(n)
	}
	at := r.cursor
	if at+n > len(r.mine.ring) {
		at = 0
	}
	r.cursor = (at + n + 63) &^ 63
	*s.ringAt() = uint64(at)
	return r.mine.ring[at:][:n:n]
}

// publish ends the filling of the next slot and returns its round.
func (r *rounds) publish() uint64 {
	s := r.next()
	round := r.numbers.Next()
	s.round.Publish(round)
	if r.step != nil {
		r.step()
	}
	return round
}

// payload is what rank said in a round.
func (r *rounds) payload(rank int, round uint64, n int) []byte {
	return r.boards[rank].payload(round, n)
}

// slot is rank's slot of a round.
func (r *rounds) slot(rank int, round uint64) *slot { return &r.boards[rank].slots[round%slots] }

// last is the round that this rank published last.
func (r *rounds) last() uint64 { return r.numbers.Last() }

// room is the length of the longest payload of a round.
func (r *rounds) room() int { return len(r.mine.ring) / ringShare }

// await waits until every rank has published the round.
func (r *rounds) await(ctx context.Context, op string, round uint64) error {
	for _, p := range r.live {
		c := r.slot(p, round).round
		if c.Load() >= round {
			continue
		}
		if err := r.waiter.Wait(ctx, c, round, op, p); err != nil {
			return r.comm.Fail(err)
		}
	}
	if r.step != nil {
		r.step()
	}
	return nil
}

// refuse fills the next slot with the reason why this rank cannot take part.
func (r *rounds) refuse(err error) {
	*r.next().call = refusedCall | uint64(putRefusal(r.fill(refusalBytes), err))
}

// agree compares the calls of a round that opened an operation. Every rank compares the same
// words, and so returns an error, if any does.
func (r *rounds) agree(op string, round uint64, own error) error {
	want := *r.slot(r.live[r.own], round).call
	same := want&refusedCall == 0
	for _, p := range r.live {
		same = same && *r.slot(p, round).call == want
	}
	if same {
		return nil
	}
	// A rank that was left out while it stood still may be looking at later rounds of the others.
	if err := r.comm.Begin(op); err != nil {
		return err
	}
	if own != nil {
		return own
	}
	for _, p := range r.live {
		if call := *r.slot(p, round).call; call&refusedCall != 0 {
			return takeRefusal(p, op, max(1, uint32(call&^refusedCall)), r.payload(p, round, refusalBytes))
		}
	}
	first := r.live[0]
	a := *r.slot(first, round).call
	for _, p := range r.live {
		if b := *r.slot(p, round).call; b != a {
			return fmt.Errorf("%s: %w: rank %d calls %s, rank %d %s", op, weft.ErrMismatch, first, r.words(a), p, r.words(b))
		}
	}
	return fmt.Errorf("%s: %w", op, weft.ErrMismatch)
}

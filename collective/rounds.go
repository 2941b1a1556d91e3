package collective

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

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
	boards []*board // by rank; nil for ranks masked when the group was made
	mine   *board
	cursor int // in this rank's ring

	numbers channel.Sequence // the last one is of the round that this rank published last
	live    []int            // ranks that take part, ascending
	own     int              // this rank's place among them

	// step, when a test has set it, is called when this rank has published a round and when it has
	// seen everyone's.
	step func()
}

func newRounds(comm *weft.Comm, w *weft.Window) *rounds {
	r := &rounds{comm: comm, waiter: comm.Operations().WaiterOf("group"), boards: make([]*board, comm.Size())}
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
	if !r.numbers.Begin(r.comm.Operations().Generation()) && r.live != nil {
		return nil
	}
	r.live = r.live[:0]
	for p, b := range r.boards {
		if r.comm.Masked(p) {
			continue
		}
		if b == nil {
			r.live = nil
			return fmt.Errorf("%s: rank %d was masked when the group was made: %w; make a new group", op, p, weft.ErrMasked)
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

// await waits until every rank has published the round.
func (r *rounds) await(ctx context.Context, op string, round uint64) error {
	for _, p := range r.live {
		c := r.slot(p, round).round
		if c.Load() >= round {
			continue
		}
		if err := r.waiter.Wait(ctx, c, round, op, p); err != nil {
			return r.comm.Operations().Fail(err)
		}
	}
	if r.step != nil {
		r.step()
	}
	return nil
}

// refusalBytes bounds the text with which a rank refuses a call.
const refusalBytes = 200

// refuse fills the next slot with the reason why this rank cannot take part.
func (r *rounds) refuse(err error) {
	s := r.next()
	*s.print = refused
	if errors.Is(err, weft.ErrUnsupported) {
		*s.print |= refusedUnsupported
	}
	text := r.fill(refusalBytes)
	n := copy(text[1:], err.Error())
	text[0] = byte(n)
}

// agree compares the fingerprints of a round that opened an operation. Every rank compares the same
// words, and so returns an error, if any does.
func (r *rounds) agree(op string, round uint64, own error) error {
	want := *r.slot(r.live[r.own], round).print
	same := want&refused == 0
	for _, p := range r.live {
		same = same && *r.slot(p, round).print == want
	}
	if same {
		return nil
	}
	// A rank that was left out while it stood still may be looking at later rounds of the others.
	if err := r.comm.Operations().Begin(op); err != nil {
		return err
	}
	if own != nil {
		return own
	}
	for _, p := range r.live {
		if print := *r.slot(p, round).print; print&refused != 0 {
			return &weft.PeerError{Rank: p, Op: op, Err: refusal(print, r.payload(p, round, refusalBytes))}
		}
	}
	first := r.live[0]
	a := *r.slot(first, round).print
	for _, p := range r.live {
		if b := *r.slot(p, round).print; b != a {
			return fmt.Errorf("%s: %w: rank %d calls %v, rank %d %v", op, weft.ErrMismatch, first, a, p, b)
		}
	}
	return fmt.Errorf("%s: %w", op, weft.ErrMismatch)
}

// refusal is what refuse has put in a slot.
func refusal(print fingerprint, text []byte) error {
	kind := weft.ErrInvalid
	if print&refusedUnsupported != 0 {
		kind = weft.ErrUnsupported
	}
	return &refusedError{string(text[1 : 1+min(int(text[0]), refusalBytes-1)]), kind}
}

// refusedError carries another rank's words, and wraps the sentinel that its error did: nothing has
// moved, the communicator is whole.
type refusedError struct {
	text string
	kind error
}

func (e *refusedError) Error() string { return "refused there: " + e.text }
func (e *refusedError) Unwrap() error { return e.kind }

// place is where a rank's operands stand, if peers can reach them. It fits the near payload of a
// slot.
type place struct {
	input, inputAt   uint64 // window and offset; window 0 = none
	output, outputAt uint64
	inPlace          uint64
}

var _ [nearBytes - int(unsafe.Sizeof(place{}))]struct{}

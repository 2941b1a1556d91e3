package fabric

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// arrived acts on what a peer's write brought to the queue. The lock is held. Ranks may write before
// this one has connected to them.
func (d *Domain) arrived(brought uint64) {
	if d.password != 0 && uint32(brought>>32) != d.password {
		return // a stranger's
	}
	kind, source, number := undata(brought)
	if source >= len(d.peers) {
		return
	}
	p := d.peer(source)
	if p.cause != nil {
		return // what it still says may come after a write that failed
	}
	s := &p.served
	switch kind {
	case kindWrite: // or kindRaise
		if p.raises() {
			p.rise(number)
			break
		}
		s.writes.mark(nearest(s.writes.next, number, numberBits))
		p.serve()
	case kindRequest:
		s.requests.mark(nearest(s.requests.next, number, numberBits))
		p.serve()
	case kindNotice:
		p.heard(number, numberBits)
	case kindAnswer:
		// Answers that overtook each other do not count backwards.
		executed := nearest(p.executed, number&(refused-1), answerBits)
		if executed > p.executed && executed <= p.asked {
			p.executed = executed
			p.covered = p.covers[(executed-1)%ring]
		}
		if number&refused != 0 {
			p.fail(fmt.Errorf("%w: close its regions when no rank adds to them any more", ErrRevoked))
		}
	}
}

// rise executes a raise: all that its source posted before has landed.
func (p *Peer) rise(number uint32) {
	id, count := int(number&(1<<idBits-1)), number>>idBits
	if p.heard(count, numberBits-idBits) && id < p.d.options.Signals {
		p.served.raised++
		p.d.board.signal(p.rank, id).Add(1)
	}
}

// heard says whether a source has raised as many signals as have arrived, by the low bits of their number. If it has
// not, a connection has ended without a word, and with something in it: that is the end of the peer on both sides.
func (p *Peer) heard(count uint32, bits uint) bool {
	s := &p.served
	if uint32(s.raised)&(1<<bits-1) == count {
		return true
	}
	p.fail(fmt.Errorf("%w: signals are missing: the network has ended a connection", ErrLost))
	if s.missing = time.Now(); !s.owing {
		s.owing = true
		p.d.owing = append(p.d.owing, p)
	}
	return false
}

// serve executes requests in their order, each when the writes that it covers have arrived.
func (p *Peer) serve() {
	d, s := p.d, &p.served
	for s.executed < s.requests.next {
		r := d.board.request(p.rank, s.executed)
		if r.covers > s.writes.next {
			break
		}
		switch r.kind {
		case requestSignal:
			if r.offset < uint64(d.options.Signals) {
				d.board.signal(p.rank, int(r.offset)).Store(r.value)
			}
		case requestAdd:
			s.wanted = true
			if word := d.word(r.key, r.offset); word != nil {
				word.Add(r.value)
			} else {
				s.refused = true
			}
		case requestMark:
			s.wanted = true
		}
		s.executed++
	}
	if (s.wanted || s.executed-s.told >= answerAt) && !s.owing {
		s.owing = true
		d.owing = append(d.owing, p)
	}
}

// word is the word that an add is for, or nil.
func (d *Domain) word(key, offset uint64) *atomic.Uint64 {
	r := d.regions[key]
	if r == nil || offset > uint64(len(r.memory)) || uint64(len(r.memory))-offset < wordSize {
		return nil
	}
	at := unsafe.Pointer(&r.memory[offset])
	if uintptr(at)%wordSize != 0 {
		return nil
	}
	return (*atomic.Uint64)(at)
}

// answer tells sources how many of their requests were executed. What the endpoint does not take now is
// told after a later poll.
func (d *Domain) answer() {
	kept := d.owing[:0]
	for _, p := range d.owing {
		if !p.answer() {
			kept = append(kept, p)
		}
	}
	d.owing = kept
}

// answer says whether nothing is owed any more. An answer is underway alone, so that a later one never
// lands before it.
func (p *Peer) answer() bool {
	d, s := p.d, &p.served
	if p.cause != nil && (s.missing.IsZero() || time.Since(s.missing) > lostAfter) {
		s.owing = false
		return true
	}
	n := len(d.free)
	if !p.connected || s.answering || n == 0 {
		return false
	}
	kind, number := uint32(kindAnswer), s.executed&(refused-1)
	switch {
	case !s.missing.IsZero():
		kind, number = kindNotice, p.raised+absurd
	case s.refused:
		number |= refused
	}
	d.post = provider.Post{Token: d.free[n-1], To: p.address}
	p.inline(&d.post, wordSize, d.board.unread())
	d.post.Data, d.post.HasData = data(kind, d.options.Rank, number)|p.password, true
	err := d.endpoint.Write(&d.post)
	if errors.Is(err, provider.ErrAgain) {
		return false
	}
	if err != nil {
		p.fail(fmt.Errorf("%w: answer: %w", ErrLost, err))
		return true
	}
	d.free = d.free[:n-1]
	d.operations[d.post.Token] = operation{peer: p, name: "answer", answer: true}
	s.answering, s.owing, s.wanted, s.told = true, false, false, s.executed
	s.missing = time.Time{}
	return true
}

package bootstrap

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/internal/filelimit"
)

// opener opens a link to peer. It takes a bounded time, and no more once the mesh is closed.
type opener func(peer int) (link, error)

// opening is a link being opened. No caller's context ends it: cut short after the peer has agreed,
// it would look there like this rank's death.
type opening struct {
	done chan struct{}
	err  error // set before done is closed
}

// linkTo returns the link that Sends to peer use, always the same one, and opens it the first time.
func (m *mesh) linkTo(ctx context.Context, peer int) (link, error) {
	l, o, err := m.linkOrOpening(peer)
	if o == nil {
		return l, err
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		return nil, &PeerError{Rank: peer, Op: "send", Err: late(ctx)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.out[peer]; l != nil {
		return l, nil
	}
	if m.closed {
		return nil, ErrClosed
	}
	if err := m.blame("send", peer); err != nil {
		return nil, err
	}
	if filelimit.Reached(o.err) {
		peer = m.rank
	}
	return nil, &PeerError{Rank: peer, Op: "send", Err: o.err}
}

func (m *mesh) linkOrOpening(peer int) (link, *opening, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	if err := m.blame("send", peer); err != nil {
		return nil, nil, err
	}
	if l := m.out[peer]; l != nil {
		return l, nil, nil
	}
	return nil, m.openLink(peer), nil
}

// openLink begins to open a link to peer, unless that is under way. The caller holds mu, and the
// mesh is not closed.
func (m *mesh) openLink(peer int) *opening {
	if o := m.opening[peer]; o != nil {
		return o
	}
	o := &opening{done: make(chan struct{})}
	m.opening[peer] = o
	m.work.Go(func() {
		l, err := m.open(peer)
		if err != nil {
			m.judge(peer, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if l != nil && m.out[peer] == nil { // else peer's own link came first and has been used
			m.out[peer] = l
		}
		o.err = err
		delete(m.opening, peer)
		close(o.done)
		m.wake()
	})
	return o
}

// judge draws the conclusion from a link to peer that could not be opened, if the reason is not
// this rank's own. Peer could be reached when it joined, so it has gone if something at its address
// says that it is not there. If nothing answers at all, it has gone if rank 0, which would notice,
// has.
func (m *mesh) judge(peer int, err error) {
	m.mu.Lock()
	alive := filelimit.Reached(err) || errors.Is(err, ErrTimeout) && !(errors.Is(err, errUnreachable) && m.orphaned())
	m.mu.Unlock()
	if alive {
		return
	}
	m.awaitEnd(uint32(peer))
	end := fault{rank: uint32(peer), reason: reasonDied, text: fmt.Sprintf("it can't be reached any more: %v", err)}
	if errors.Is(err, ErrLeft) {
		end.reason, end.text = reasonLeft, ""
	}
	m.observe(m.rank, end)
}

// unwatched reports whether peer's end would go unnoticed: rank 0, which reports ends, is gone, and
// there is no link to peer. A Recv then opens one. The caller holds mu.
func (m *mesh) unwatched(peer int) bool {
	return peer != m.rank && m.out[peer] == nil && m.orphaned() && !m.seen[seenFault{uint32(peer), true}]
}

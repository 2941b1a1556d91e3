package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sendTimeout is how long Send, and the goodbyes of Close, wait for a peer that does not read.
	sendTimeout = time.Second
	// maxOffers is how many exchanges a peer may be ahead.
	maxOffers = 64
)

// Mesh connects a rank with every other rank of a list. Its methods may be called from any
// goroutine.
type Mesh struct {
	self    int
	token   [16]byte
	mailbox *mailbox
	peers   []*peer // nil at self, and for ranks of other hosts
	watch   *watch
	onEvent func(Event)
	running sync.WaitGroup

	awaited atomic.Int64 // 1 + the peer that an exchange waits for; 0 = none

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when an awaited peer offers something or any goes
	closed  bool
}

// peer is another rank. Messages reach it through its mailbox if it is a rank of this process, else
// through conn.
type peer struct {
	position int
	address  Address
	mailbox  *mailbox

	// Guarded by the mesh's mu.
	conn     *conn
	ended    bool                // its process is known to have ended
	gone     error               // why it sends no more: wraps ErrLeft or ErrDied
	awaited  int                 // exchanges that wait for it before all others
	offers   map[uint64]offer    // by exchange
	unwanted map[uint64]struct{} // exchanges that ended here before its offer came
}

func newMesh(self int, addrs []Address, box *mailbox, onEvent func(Event)) (*Mesh, error) {
	w, err := newWatch()
	if err != nil {
		return nil, err
	}
	m := &Mesh{
		self: self, token: addrs[self].Token, mailbox: box, watch: w, onEvent: onEvent,
		peers: make([]*peer, len(addrs)), changed: make(chan struct{}),
	}
	for i, a := range addrs {
		if i != self && a != (Address{}) {
			m.peers[i] = &peer{position: i, address: a, offers: make(map[uint64]offer), unwanted: make(map[uint64]struct{})}
		}
	}
	return m, nil
}

// start begins to read from the peers.
func (m *Mesh) start() {
	m.running.Go(m.readMailbox)
	for _, p := range m.peers {
		if p != nil && p.conn != nil {
			m.running.Go(func() { m.read(p) })
		}
	}
}

// attach gives a peer its connection, once.
func (m *Mesh) attach(p *peer, c *conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.conn != nil {
		return false
	}
	p.conn = c
	if p.ended {
		c.closeRead()
	}
	return true
}

// ended records that a peer's process has ended, and reports whether its connection will show the
// rest: data that the process sent before it died are still to be read, and the end comes behind
// them even if another process holds the socket open.
func (m *Mesh) ended(p *peer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.ended = true
	if p.conn == nil {
		return false
	}
	p.conn.closeRead()
	return true
}

// read serves one peer of another process until it goes.
func (m *Mesh) read(p *peer) {
	defer p.conn.close()
	defer m.watch.remove(p.position)
	for {
		in, err := p.conn.read()
		if err != nil {
			m.lost(p, err)
			return
		}
		switch in.kind {
		case kindGoodbye:
			m.depart(p, Left, ErrLeft)
			return
		case kindMessage:
			m.emit(Event{Peer: p.position, Kind: Message, Data: append([]byte(nil), in.payload...)})
		case kindRegion, kindDescriptor:
			o, err := offerOf(in)
			if err == nil {
				err = m.deliver(p, in.id, o)
			}
			if err != nil {
				m.lost(p, err)
				return
			}
		default:
			m.lost(p, fmt.Errorf("unexpected %v: %w", in.kind, ErrMalformed))
			return
		}
	}
}

// readMailbox serves the peers of this process until Close.
func (m *Mesh) readMailbox() {
	for {
		select {
		case <-m.mailbox.closed:
			return
		case in := <-m.mailbox.parcels:
			p := m.peers[in.from]
			switch in.kind {
			case kindGoodbye:
				m.depart(p, Left, ErrLeft)
			case kindAbandon:
				m.depart(p, Died, fmt.Errorf("%w: gave up joining", ErrDied))
			case kindMessage:
				m.emit(Event{Peer: in.from, Kind: Message, Data: in.payload})
			default:
				if err := m.deliver(p, in.id, in.offer); err != nil {
					m.depart(p, Died, fmt.Errorf("%w: %w", ErrDied, err))
				}
			}
		}
	}
}

// lost says how a connection ended that ended without a goodbye.
func (m *Mesh) lost(p *peer, err error) {
	m.mu.Lock()
	ended := p.ended
	m.mu.Unlock()
	switch {
	case ended:
		err = fmt.Errorf("%w: process %d ended", ErrDied, p.address.PID)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: process %d closed its connection without a goodbye", ErrDied, p.address.PID)
	default:
		err = fmt.Errorf("%w: connection with process %d: %w", ErrDied, p.address.PID, err)
	}
	m.depart(p, Died, err)
}

// depart records that a peer is gone, and reports it once.
func (m *Mesh) depart(p *peer, kind EventKind, why error) {
	m.mu.Lock()
	first := p.gone == nil
	if first {
		p.gone = why
		clear(p.unwanted)
		m.announce()
	}
	m.mu.Unlock()
	if first {
		m.emit(Event{Peer: p.position, Kind: kind, Err: why})
	}
}

// announce wakes the callers that wait for a change. The caller holds mu.
func (m *Mesh) announce() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// emit calls the handler, unless this rank is leaving.
func (m *Mesh) emit(e Event) {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if !closed && m.onEvent != nil {
		m.onEvent(e)
	}
}

// deliver keeps an offer until its exchange takes it.
func (m *Mesh) deliver(p *peer, id uint64, o offer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, unwanted := p.unwanted[id]
	_, twice := p.offers[id]
	switch {
	case m.closed || p.gone != nil || unwanted:
		delete(p.unwanted, id)
		o.drop()
		return nil
	case twice:
		o.drop()
		return fmt.Errorf("exchange %d offered twice: %w", id, ErrMismatch)
	case len(p.offers) == maxOffers:
		o.drop()
		return fmt.Errorf("%d exchanges ahead: %w", maxOffers+1, ErrMismatch)
	}
	p.offers[id] = o
	if p.awaited > 0 { // else it is found when the awaited one has come: of n peers not all n wake an exchange
		m.announce()
	}
	return nil
}

// post sends to a peer, by socket or mailbox. A region or descriptor of the offer stays the
// caller's on error.
func (m *Mesh) post(ctx context.Context, p *peer, f frame, o offer) error {
	if p.mailbox != nil {
		return p.mailbox.post(ctx, parcel{from: m.self, frame: f, offer: o})
	}
	fd := -1
	if f.kind.carriesDescriptor() {
		fd = o.fd
	}
	return p.conn.write(ctx, f, fd)
}

// state returns whether this rank has closed the mesh, and why a peer is gone, or nil.
func (m *Mesh) state(p *peer) (closed bool, gone error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed, p.gone
}

// hasGone reports whether a send failed because one end is closed. If it is the peer's, data that
// the peer sent before are still to be read, and only they show whether it left or died.
func hasGone(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, ErrLeft)
}

// Size is the number of ranks, this one included.
func (m *Mesh) Size() int { return len(m.peers) }

// Self is the position of this rank.
func (m *Mesh) Self() int { return m.self }

// Send gives peer a message of at most [MaxMessage] bytes, which it gets as an [Event]. Messages to
// one peer arrive in order. Send copies data, and returns when the message is on its way, not when
// it was read: one to a peer that is about to be reported gone may be lost without an error. For a
// peer that has long not read it waits a second, then returns [ErrBusy].
func (m *Mesh) Send(peer int, data []byte) error {
	if peer < 0 || peer >= len(m.peers) || m.peers[peer] == nil {
		return fmt.Errorf("send to peer %d of %d from %d: no such peer", peer, len(m.peers), m.self)
	}
	if len(data) > MaxMessage {
		return fmt.Errorf("send %d bytes to peer %d: over %d: %w", len(data), peer, MaxMessage, ErrTooLarge)
	}
	p := m.peers[peer]
	closed, gone := m.state(p)
	if !closed && gone == nil {
		if p.mailbox != nil {
			data = append([]byte(nil), data...)
		}
		ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
		defer cancel()
		err := m.post(ctx, p, frame{kind: kindMessage, payload: data}, offer{})
		if errors.Is(err, context.DeadlineExceeded) {
			err = ErrBusy
		}
		if err == nil {
			return nil
		}
		if !hasGone(err) {
			return fmt.Errorf("send to %w", &PeerError{Peer: peer, Err: err})
		}
		closed, gone = m.state(p)
	}
	switch {
	case closed:
		return fmt.Errorf("send to peer %d: %w", peer, ErrClosed)
	case gone != nil:
		return fmt.Errorf("send to %w", &PeerError{Peer: peer, Err: gone})
	}
	return nil
}

// Close says goodbye to the remaining peers and frees the mesh's resources; regions that were
// exchanged stay with their owners. No event is delivered after it returns, so it must not be
// called by the event handler. Further calls do nothing.
func (m *Mesh) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		m.running.Wait()
		return nil
	}
	m.closed = true
	m.announce()
	m.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	m.farewell(ctx, kindGoodbye)
	m.release()
	return nil
}

// farewell is the last frame to every peer that still listens.
func (m *Mesh) farewell(ctx context.Context, kind frameKind) {
	for _, p := range m.peers {
		if p == nil || (p.mailbox == nil && p.conn == nil) {
			continue
		}
		if _, gone := m.state(p); gone == nil {
			// A peer that cannot be reached takes this rank for dead when it reads again and finds
			// the connection closed.
			_ = m.post(ctx, p, frame{kind: kind}, offer{})
		}
	}
}

// release ends the goroutines and drops everything.
func (m *Mesh) release() {
	m.watch.close()
	m.mailbox.close(m.token)
	for _, p := range m.peers {
		if p != nil && p.conn != nil {
			p.conn.close()
		}
	}
	m.running.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		for _, o := range p.offers {
			o.drop()
		}
		clear(p.offers)
	}
}

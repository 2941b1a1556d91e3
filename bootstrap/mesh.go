package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// mesh is one rank of a job: the state that its links feed, and the calls that wait on it. It does
// not depend on the kind of its links.
//
// Nothing is sent while mu is held, so that in-process links may call straight into the peer.
type mesh struct {
	rank, size int
	meeting    string // where the ranks meet, for reports; may be empty
	open       opener
	trace      tracer
	stop       func()         // closes the links' transport, after the farewell
	turn       chan struct{}  // held by the collective call in progress
	work       sync.WaitGroup // links being opened

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a waiter may go on
	closed  bool
	out     map[int]link       // the links on which this rank sends, by peer
	peers   map[link]*audience // every link, either direction
	opening map[int]*opening   // links being opened
	inbox   map[int][][]byte
	news    []*news
	faults  []fault // the failure that callers get: the first of the news that all peers have been sent
	seen    map[seenFault]bool
	limit   map[uint32]uint64 // collectives that a faulty rank took part in, as rank 0 counts them

	seq     uint64    // collectives entered
	since   time.Time // when the last of them was
	broken  error     // why this rank can enter no more
	entered []uint64  // rank 0: collectives that each rank has entered
	hub     hub       // rank 0
	formed  bool      // rank 0: every rank has joined, and none died before the last one did
	refused []string  // rank 0: connections that were turned away
	down    [][]byte  // other ranks: the result so far of the collective in progress
	answer  *missing  // other ranks: to the last inquiry
}

// errExpired is how wait says that the context ended.
var errExpired = errors.New("context ended")

func newMesh(rank, size int) *mesh {
	m := &mesh{
		rank: rank, size: size,
		stop:    func() {},
		turn:    make(chan struct{}, 1),
		changed: make(chan struct{}),
		out:     make(map[int]link),
		peers:   make(map[link]*audience),
		opening: make(map[int]*opening),
		inbox:   make(map[int][][]byte),
		seen:    make(map[seenFault]bool),
		limit:   make(map[uint32]uint64),
	}
	if rank == 0 {
		m.entered = make([]uint64, size)
		m.hub.shares = make([][]share, size)
	}
	return m
}

func (m *mesh) Rank() int { return m.rank }
func (m *mesh) Size() int { return m.size }

// wake lets every waiter look again. The caller holds mu.
func (m *mesh) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// wait returns when ready, called under mu, says so or fails, or with errExpired when the context
// ends.
func (m *mesh) wait(ctx context.Context, ready func() (bool, error)) error {
	for {
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return ErrClosed
		}
		ok, err := ready()
		changed := m.changed
		m.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errExpired
		}
	}
}

// joined reports whether every rank has joined.
func (m *mesh) joined() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.formed
}

func (m *mesh) checkPeer(peer int) error {
	if peer < 0 || peer >= m.size {
		return fmt.Errorf("rank %d does not exist among %d", peer, m.size)
	}
	return nil
}

func (m *mesh) Send(ctx context.Context, peer int, b []byte) error {
	if err := m.checkPeer(peer); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if len(b) > MaxMessage {
		return fmt.Errorf("send: %w: %d bytes, at most %d", ErrTooLong, len(b), MaxMessage)
	}
	b = bytes.Clone(b)
	if peer == m.rank {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.closed {
			return ErrClosed
		}
		m.inbox[peer] = append(m.inbox[peer], b)
		m.wake()
		return nil
	}
	l, err := m.linkTo(ctx, peer)
	if err == nil {
		err = l.room(ctx)
		if err != nil {
			err = &PeerError{Rank: peer, Op: "send", Err: err}
		}
	}
	m.mu.Lock()
	if lost := m.blame("send", peer); lost != nil {
		err = lost
	}
	if m.closed {
		err = ErrClosed
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	l.send(pack(data{b}))
	return nil
}

func (m *mesh) Recv(ctx context.Context, peer int) ([]byte, error) {
	if err := m.checkPeer(peer); err != nil {
		return nil, fmt.Errorf("recv: %w", err)
	}
	var b []byte
	err := m.wait(ctx, func() (bool, error) {
		if q := m.inbox[peer]; len(q) > 0 {
			b, m.inbox[peer] = q[0], q[1:]
			return true, nil
		}
		err := m.drained(peer)
		if err == nil && m.unwatched(peer) {
			m.openLink(peer)
		}
		return false, err
	})
	if err == errExpired {
		err = &PeerError{Rank: peer, Op: "recv", Err: late(ctx)}
	}
	return b, err
}

// attach makes l one of the mesh's links, and the one to send on if there is none yet. It reports
// false if the mesh is closed.
func (m *mesh) attach(peer int, l link) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	m.peers[l] = &audience{rank: peer}
	if m.out[peer] == nil {
		m.out[peer] = l
	}
	m.mu.Unlock()
	m.tell(l)
	return true
}

// detach takes note that l has ended, and how.
func (m *mesh) detach(peer int, l link, end *fault) {
	if end != nil {
		m.observe(m.rank, *end)
	}
	m.mu.Lock()
	delete(m.peers, l)
	m.wake()
	m.mu.Unlock()
}

// handle takes one message from an established link. An error means that the peer broke the
// protocol.
func (m *mesh) handle(from int, msg message) error {
	m.traced(false, from, msg)
	switch msg := msg.(type) {
	case data:
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.closed {
			m.inbox[from] = append(m.inbox[from], msg.bytes)
			m.wake()
		}
		return nil
	case share:
		return m.takeShare(from, msg)
	case gathered:
		return m.takeGathered(from, msg)
	case fault:
		if sentinels[msg.reason] == nil || int64(msg.rank) >= int64(m.size) && !msg.reason.ofJob() {
			return fmt.Errorf("%w: fault of rank %d of %d", ErrProtocol, msg.rank, m.size)
		}
		m.observe(from, msg)
		return nil
	case bye:
		m.observe(from, fault{rank: uint32(from), reason: reasonLeft})
		return nil
	case inquiry:
		return m.answerInquiry(from, msg)
	case missing:
		return m.takeAnswer(from, msg)
	default:
		return fmt.Errorf("%w: %T on an established link", ErrProtocol, msg)
	}
}

// farewellTimeout bounds how long Close waits for a peer to take the messages that were sent.
const farewellTimeout = 2 * time.Second

func (m *mesh) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.wake()
	links := slices.Collect(maps.Keys(m.peers))
	m.mu.Unlock()

	p := pack(bye{})
	for _, l := range links {
		l.send(p)
	}
	deadline := time.Now().Add(farewellTimeout)
	var shut sync.WaitGroup
	for _, l := range links {
		shut.Go(func() { l.shut(deadline) })
	}
	shut.Wait()
	m.stop()
	m.work.Wait()
	return nil
}

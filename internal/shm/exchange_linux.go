package shm

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft/internal/filelimit"
)

// Exchange gives r to every peer and returns theirs, by position; its own entry is r. It is
// collective: every rank calls it with the same id, which no other exchange of the mesh has. Peers
// for which skip returns true are neither given to nor waited for, and their entries are nil; skip
// may be nil, and is asked once for each peer.
//
// The caller releases every region it gets but its own. A peer of this process gets r itself with a
// reference of its own, not a second mapping. If Exchange fails it returns no region. The error is
// a [*PeerError] that names a peer that is gone, or the first that had not answered when ctx ended,
// or this rank if it has reached its limit of open files. Peers may still have got r.
func (m *Mesh) Exchange(ctx context.Context, id uint64, r *Region, skip func(peer int) bool) ([]*Region, error) {
	regions := make([]*Region, len(m.peers))
	err := m.exchange(ctx, id, kindRegion, skip,
		func(p *peer) (offer, []byte, error) {
			o := offer{kind: kindRegion, regionOffer: regionOffer{size: r.size, populate: r.populate}, fd: r.fd}
			if p.mailbox != nil {
				r.Retain()
				o.region = r
				return o, nil, nil
			}
			if r.fd < 0 {
				return offer{}, nil, fmt.Errorf("a region of another process can't be passed on: %w", ErrNotMemfd)
			}
			return o, o.encode(), nil
		},
		func(p *peer, o offer) (err error) {
			regions[p.position], err = o.takeRegion()
			return err
		})
	if err != nil {
		for _, r := range regions {
			if r != nil {
				_ = r.Release()
			}
		}
		return nil, err
	}
	regions[m.self] = r
	return regions, nil
}

// ExchangeFD is Exchange for any descriptor. It borrows fd; the caller closes every descriptor it
// gets but its own, and the entries of skipped peers are -1. The caller must check the files behind
// peers' descriptors.
func (m *Mesh) ExchangeFD(ctx context.Context, id uint64, fd int, skip func(peer int) bool) ([]int, error) {
	fds := slices.Repeat([]int{-1}, len(m.peers))
	err := m.exchange(ctx, id, kindDescriptor, skip,
		func(p *peer) (offer, []byte, error) {
			if p.mailbox == nil {
				return offer{kind: kindDescriptor, fd: fd}, nil, nil
			}
			twin, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return offer{}, nil, os.NewSyscallError("fcntl(F_DUPFD)", err)
			}
			return offer{kind: kindDescriptor, fd: twin}, nil, nil
		},
		func(p *peer, o offer) error {
			fds[p.position] = o.fd
			return nil
		})
	if err != nil {
		for _, fd := range fds {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return nil, err
	}
	fds[m.self] = fd
	return fds, nil
}

// ExchangeMemory is Exchange for ordinary memory, which is handed over as it is and needs no
// release. All ranks but those skipped must be goroutines of this process; otherwise the error
// wraps [ErrOtherProcess] and names the first that is not, and nothing was exchanged.
func (m *Mesh) ExchangeMemory(ctx context.Context, id uint64, mem []byte, skip func(peer int) bool) ([][]byte, error) {
	skipped := m.skipped(skip)
	for i, p := range m.peers {
		if p != nil && !skipped[i] && p.mailbox == nil {
			return nil, fmt.Errorf("exchange %d: %w", id, &PeerError{Peer: i, Err: ErrOtherProcess})
		}
	}
	memory := make([][]byte, len(m.peers))
	err := m.exchange(ctx, id, kindMemory, func(peer int) bool { return skipped[peer] },
		func(*peer) (offer, []byte, error) { return offer{kind: kindMemory, memory: mem}, nil, nil },
		func(p *peer, o offer) error {
			memory[p.position] = o.memory
			return nil
		})
	if err != nil {
		return nil, err
	}
	memory[m.self] = mem
	return memory, nil
}

func (m *Mesh) skipped(skip func(peer int) bool) []bool {
	skipped := make([]bool, len(m.peers))
	for i := range skipped {
		skipped[i] = skip != nil && i != m.self && skip(i)
	}
	return skipped
}

// exchange sends the result of share to each peer, then calls take with each peer's offer.
func (m *Mesh) exchange(ctx context.Context, id uint64, kind frameKind, skip func(peer int) bool,
	share func(*peer) (offer, []byte, error), take func(*peer, offer) error,
) error {
	skipped := m.skipped(skip)
	var waiting []*peer
	for i, p := range m.peers {
		switch {
		case p == nil:
		case skipped[i]:
			m.refuse(p, id)
		default:
			waiting = append(waiting, p)
		}
	}
	var failed error
	for _, p := range waiting {
		if failed = m.give(ctx, p, frame{kind: kind, id: id}, share); failed != nil {
			break
		}
	}
	for failed == nil && len(waiting) > 0 {
		waiting, failed = m.collect(ctx, id, kind, waiting, take)
	}
	if failed != nil {
		for _, p := range waiting {
			m.refuse(p, id)
		}
		return fmt.Errorf("exchange %d: %w", id, failed)
	}
	return nil
}

// give sends a peer its share. One that is gone needs none, and collect finds out whether it gave
// its own before it went.
func (m *Mesh) give(ctx context.Context, p *peer, f frame, share func(*peer) (offer, []byte, error)) error {
	if _, gone := m.state(p); gone != nil {
		return nil
	}
	o, payload, err := share(p)
	if err != nil {
		return m.own(err)
	}
	f.payload = payload
	err = m.post(ctx, p, f, o)
	if err != nil && p.mailbox != nil {
		o.drop()
	}
	if err != nil && !hasGone(err) {
		return &PeerError{Peer: p.position, Err: err}
	}
	return nil
}

// collect takes the offers that have arrived. If there was none it waits for the first that is
// owed. It returns the peers that still owe theirs.
func (m *Mesh) collect(ctx context.Context, id uint64, kind frameKind, waiting []*peer,
	take func(*peer, offer) error,
) ([]*peer, error) {
	m.mu.Lock()
	var ready, owing []*peer
	var offers []offer
	var gone *peer
	for _, p := range waiting {
		if o, ok := p.offers[id]; ok {
			delete(p.offers, id)
			ready, offers = append(ready, p), append(offers, o)
			continue
		}
		owing = append(owing, p)
		if p.gone != nil && gone == nil {
			gone = p
		}
	}
	closed, changed := m.closed, m.changed
	wait := !closed && gone == nil && len(ready) == 0
	if wait {
		owing[0].awaited++
	}
	m.mu.Unlock()

	for i, p := range ready {
		if err := m.receive(p, kind, offers[i], take); err != nil {
			for _, o := range offers[i+1:] {
				o.drop()
			}
			return owing, m.failed(p, err)
		}
	}
	switch {
	case closed:
		return owing, ErrClosed
	case gone != nil:
		return owing, &PeerError{Peer: gone.position, Err: gone.gone}
	case !wait:
		return owing, nil
	}
	m.awaited.Store(int64(owing[0].position) + 1)
	defer func() {
		m.awaited.Store(0)
		m.mu.Lock()
		owing[0].awaited--
		m.mu.Unlock()
	}()
	select {
	case <-changed:
		return owing, nil
	case <-ctx.Done():
		silent := m.silent(owing, id)
		if len(silent) == 0 {
			return owing, nil
		}
		return owing, &PeerError{Peer: silent[0].position, Err: silence(silent, context.Cause(ctx))}
	}
}

// silent lists the peers that have not answered, which may be fewer than when the wait began.
func (m *Mesh) silent(owing []*peer, id uint64) []*peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(owing), func(p *peer) bool {
		_, answered := p.offers[id]
		return answered
	})
}

// Awaited is the first of the peers that an exchange waits for at this moment, or -1. It is a
// diagnosis, of use while one exchange is made at a time.
func (m *Mesh) Awaited() int { return int(m.awaited.Load()) - 1 }

// failed says that something with a peer has failed, which is this rank's own fault if it has as
// many files open as it may.
func (m *Mesh) failed(p *peer, err error) error {
	if filelimit.Reached(err) {
		return m.own(err)
	}
	return &PeerError{Peer: p.position, Err: err}
}

// own is failed for errors that concern no peer.
func (m *Mesh) own(err error) error {
	if filelimit.Reached(err) {
		return &PeerError{Peer: m.self, Err: filelimit.Error()}
	}
	return err
}

func (m *Mesh) receive(p *peer, kind frameKind, o offer, take func(*peer, offer) error) error {
	switch {
	case o.kind != kind:
		o.drop()
		return fmt.Errorf("%w: it gave a %v where this rank gave a %v", ErrMismatch, o.kind, kind)
	case o.err != nil:
		return o.err
	}
	return take(p, o)
}

// silence words the end of a wait for one or more peers.
func silence(owing []*peer, cause error) error {
	if len(owing) == 1 {
		return fmt.Errorf("no answer: %w", cause)
	}
	others := make([]int, 0, len(owing)-1)
	for _, p := range owing[1:] {
		others = append(others, p.position)
	}
	return fmt.Errorf("no answer, nor from peers %v: %w", others, cause)
}

// refuse drops a peer's offer for an exchange that is over here, be it there already or still to
// come.
func (m *Mesh) refuse(p *peer, id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := p.offers[id]; ok {
		delete(p.offers, id)
		o.drop()
	} else if p.gone == nil {
		p.unwanted[id] = struct{}{}
	}
}

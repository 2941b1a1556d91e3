package bootstrap

import (
	"context"
	"time"
)

// NewInProcess makes a job of size ranks that are goroutines of this process, and returns one
// Bootstrap for each. They exchange messages by function call, under the protocol of the others.
func NewInProcess(size int) ([]Bootstrap, error) {
	if err := checkRank(0, size); err != nil {
		return nil, err
	}
	group := newGroup(size)
	ranks := make([]Bootstrap, size)
	for r, m := range group {
		ranks[r] = m
	}
	return ranks, nil
}

func newGroup(size int) []*mesh {
	group := make([]*mesh, size)
	for r := range group {
		m := newMesh(r, size)
		m.open = func(peer int) (link, error) {
			l := &callLink{from: m, to: group[peer]}
			// A peer that has left takes no link, and would not come to let go of this one.
			if !group[peer].attach(m.rank, &callLink{from: group[peer], to: m}) {
				return nil, ErrLeft
			}
			m.attach(peer, l)
			return l, nil
		}
		group[r] = m
	}
	group[0].formed = true
	for r := 1; r < size; r++ {
		group[r].attach(0, &callLink{from: group[r], to: group[0]})
		group[0].attach(r, &callLink{from: group[0], to: group[r]})
	}
	return group
}

// callLink hands messages to a rank of the same process.
type callLink struct{ from, to *mesh }

func (l *callLink) send(p *packet) {
	for _, msg := range p.messages {
		if err := l.to.handle(l.from.rank, msg); err != nil {
			l.to.observe(l.to.rank, fault{rank: uint32(l.from.rank), reason: reasonProtocol, text: err.Error()})
		}
	}
}

func (l *callLink) room(context.Context) error { return nil }
func (l *callLink) flush(time.Time)            {}

// shut lets go of the links back to the rank that leaves.
func (l *callLink) shut(time.Time) { l.to.forget(l.from.rank) }

// forget drops the links to a rank of the same process that has gone.
func (m *mesh) forget(peer int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for l, p := range m.peers {
		if p.rank == peer {
			delete(m.peers, l)
		}
	}
	m.wake()
}

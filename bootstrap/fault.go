package bootstrap

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"
)

type seenFault struct {
	rank   uint32
	deadly bool
}

// news is a fault that this rank has learned of.
type news struct {
	fault
	from   int // the reporter, which may be this rank
	packet *packet
	passed bool // peers have the news
}

// audience is the peer at the other end of a link, and how much of the news it has been sent.
type audience struct {
	rank    int
	sent    int
	sending bool
}

// never is the count of a fault that rank 0 has not confirmed: it holds up no collective.
const never = math.MaxUint64

// flushFault is how long a rank holds news back from its own callers so that its peers get it
// first. Callers often exit on an error, and a peer should then know that this rank was not the
// first to go.
const flushFault = 100 * time.Millisecond

// observe records a fault that from reports, or that this rank saw itself, and passes it on.
func (m *mesh) observe(from int, f fault) {
	if f.rank == 0 && f.reason.death() && from != m.rank {
		m.awaitEnd(0)
		return
	}
	m.mu.Lock()
	f.entered = m.confirmed(from, f)
	if limit, ok := m.limit[f.rank]; !ok || f.entered < limit {
		m.limit[f.rank] = f.entered
		m.wake()
	}
	key := seenFault{f.rank, f.reason.deadly()}
	if m.seen[key] || m.closed {
		m.mu.Unlock()
		return
	}
	m.seen[key] = true
	n := &news{fault: f, from: from, packet: pack(f)}
	m.news = append(m.news, n)
	links := slices.Collect(maps.Keys(m.peers))
	m.mu.Unlock()

	for _, l := range links {
		m.tell(l)
	}
	deadline := time.Now().Add(flushFault)
	for _, l := range links {
		l.flush(deadline)
	}

	m.mu.Lock()
	n.passed = true
	// In order, so that a death is never known before the one that led to it.
	for _, n := range m.news[len(m.faults):] {
		if !n.passed {
			break
		}
		m.faults = append(m.faults, n.fault)
	}
	m.wake()
	m.mu.Unlock()
}

// tell sends l the news that it has not been sent. One caller at a time does it for a link, so that
// the order is that of the news.
func (m *mesh) tell(l link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.peers[l]
	if a == nil || a.sending {
		return
	}
	a.sending = true
	for a.sent < len(m.news) {
		n := m.news[a.sent]
		a.sent++
		// Rank 0 sends it to the reporter too: only rank 0 knows how many collectives are unharmed.
		if a.rank == n.from && m.rank != 0 || a.rank == int(n.rank) && n.reason.deadly() {
			continue
		}
		m.mu.Unlock()
		l.send(n.packet)
		m.mu.Lock()
	}
	a.sending = false
}

// awaitEnd waits a moment for a report of a rank's end from the link that is trusted about it: for
// rank 0's own end the link to rank 0; for any other's end rank 0, while that exists. It delays a
// rank that reports rank 0's death. Only this rank's own link is trusted about rank 0, but
// consequences of the report, such as the reporter's death, must not be seen first.
func (m *mesh) awaitEnd(rank uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), flushFault)
	defer cancel()
	_ = m.wait(ctx, func() (bool, error) { return m.seen[seenFault{rank, true}] || m.orphaned(), nil })
}

// orphaned reports whether rank 0, which watches every rank for all the others, has gone. The
// caller holds mu.
func (m *mesh) orphaned() bool { return m.seen[seenFault{0, true}] }

// confirmed is the number of collectives that the rank of f took part in. Rank 0 counts them. Other
// ranks' counts are ignored, except that without rank 0 there are no more collectives. The caller
// holds mu.
func (m *mesh) confirmed(from int, f fault) uint64 {
	switch {
	case f.reason.ofJob():
		return 0
	case m.rank == 0 && !m.formed && f.reason.death():
		return 0 // a job forms with all of its ranks or not at all
	case m.rank == 0:
		return m.entered[f.rank]
	case f.rank == 0 && f.reason.deadly():
		return 0
	case from == 0:
		return f.entered
	default:
		return never
	}
}

// blame returns why nothing more comes from peer: its own end, or the death before it that explains
// it. The caller holds mu.
func (m *mesh) blame(op string, peer int) error {
	var death *fault
	for i := range m.faults {
		f := &m.faults[i]
		if f.reason.death() && death == nil {
			death = f
		}
		if int(f.rank) == peer && f.reason.deadly() {
			if death != nil {
				f = death
			}
			return f.err(op)
		}
	}
	return nil
}

func (f *fault) err(op string) error { return f.peerError(op) }

func (f *fault) peerError(op string) *PeerError {
	return &PeerError{Rank: int(f.rank), Op: op, Err: f.reason.err(f.text)}
}

// drained is blame for a receiver: a rank that left may still have messages on a link of its own,
// behind the news that came by way of rank 0. The caller holds mu.
func (m *mesh) drained(peer int) error {
	err := m.blame("recv", peer)
	if err == nil || !m.left(peer) {
		return err
	}
	for _, p := range m.peers {
		if p.rank == peer {
			return nil
		}
	}
	return err
}

func (m *mesh) left(peer int) bool {
	for i := range m.faults {
		if int(m.faults[i].rank) == peer && m.faults[i].reason == reasonLeft {
			return true
		}
	}
	return false
}

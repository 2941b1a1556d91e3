package mirror

import (
	"context"
	"fmt"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/control"
)

// Mirrors are those that the ranks of a communicator of several hosts have of an owner's pads. All methods are for
// one goroutine at a time.
type Mirrors struct {
	Window *weft.Window // the owner closes it

	comm    *weft.Comm
	domain  *fabric.Domain
	own     []byte // this rank's part of the window
	streams []*stream
	live    []*stream // of unmasked ranks
	layout  layout
	lost    *stream // the first of them that failed
}

// An Item is what a sender tells a peer of.
type Item struct {
	Counter  int // where the counter lies in the pad
	Bytes    int // that lie behind the counter's own, and go with the value
	Value    uint64
	From, To int    // a range of the pad that the value announces
	Parts    []Part // more of what it announces
	Bulk     bool   // [Mirrors.Waits] does not count it
}

// A Part is bytes that go from a region of this rank's to one of the peer's, or, without From, from a place of the
// pad to the same place of its mirror.
type Part struct {
	From       *fabric.Region
	To         fabric.Remote
	Offset, At int // in From, and in To
	Bytes      int
}

// New makes mirrors of pads of so many bytes, which begin at the beginning of each rank's part of the window. A
// rank has so many lines for each other one. It is collective.
func New(ctx context.Context, comm *weft.Comm, op string, pad, lines int) (*Mirrors, error) {
	m := &Mirrors{comm: comm, layout: layoutOf(comm, pad, lines), streams: make([]*stream, comm.Size())}
	var err error
	if m.Window, err = comm.Operations().AllocHost(ctx, m.layout.bytes()); err != nil {
		return nil, err
	}
	signal, err := comm.Operations().FabricSignal(ctx, op)
	if err != nil {
		_ = m.Window.Close()
		return nil, err
	}
	m.domain, m.own = comm.Operations().Fabric(), m.Window.Bytes()
	self := comm.Rank()
	for r := range m.streams {
		peer := comm.Operations().FabricPeer(r)
		if comm.Host(r) == comm.Host(self) || peer == nil || m.Window.Remote(r).Bytes() == 0 {
			continue
		}
		m.streams[r] = &stream{
			m: m, rank: r, peer: peer, remote: m.Window.Remote(r), signal: signal,
			theirs: m.own[m.layout.mirror(self, r):][:m.layout.pad], mirror: m.layout.mirror(r, self),
			in: m.own[m.layout.inbox(r):][:m.layout.box], inbox: m.layout.inbox(self),
			out: m.own[m.layout.outbox(r):][:m.layout.box], outbox: m.layout.outbox(r),
			lines: uint64(lines),
		}
	}
	return m, nil
}

// Has says whether there are mirrors between this rank and one of another host: neither was masked when they
// were made.
func (m *Mirrors) Has(rank int) bool { return m.streams[rank] != nil }

// Of is this rank's mirror of the pad of a rank of another host.
func (m *Mirrors) Of(rank int) []byte { return m.streams[rank].theirs }

// Kept is the mirror of a rank's pad that a rank of this host keeps, which may be this one; nil if that was masked
// when the mirrors were made.
func (m *Mirrors) Kept(keeper, rank int) []byte {
	mem := m.Window.Peer(keeper)
	if mem == nil {
		return nil
	}
	return mem[m.layout.mirror(keeper, rank):][:m.layout.pad:m.layout.pad]
}

// Settle is for what comes after SetMask. It drops what was not begun, and waits until what was has landed: else it
// might land on what is said from now on. The peers need not call it.
func (m *Mirrors) Settle(op string) error {
	m.live, m.lost = m.live[:0], nil
	for r, s := range m.streams {
		if s != nil {
			s.remote = m.Window.Remote(r) // SetMask may have renewed it
		}
		if s != nil && !m.comm.Masked(r) {
			m.live = append(m.live, s)
			if s.err != nil && m.lost == nil {
				m.lost = s
			}
		}
		if s != nil {
			s.drop()
		}
	}
	for _, s := range m.live {
		err := m.comm.Operations().Waiter().Until(context.Background(), op, s.rank, func() bool {
			m.Pump()
			return s.idle() && s.fence() && len(s.underway) == 0 || m.lost != nil
		})
		if err != nil {
			return m.comm.Operations().Fail(err)
		}
	}
	if rank, err := m.Lost(); err != nil {
		return m.comm.Operations().Unreachable(op, rank, fmt.Errorf("%w; make a communicator without it, or join anew",
			err))
	}
	return nil
}

// Send takes down what a rank of another host is to be told, after what it was told before. The range and the parts
// must stay as they are until Sent says so; the bytes behind the counter are copied. It returns the item's number.
func (m *Mirrors) Send(rank int, i Item) uint64 {
	s := m.streams[rank]
	q := queued{Item: i}
	copy(q.data[:i.Bytes], m.own[i.Counter+channel.CounterBytes:])
	s.queue = append(s.queue, q)
	s.count(i, 1)
	s.asked++
	s.push()
	return s.asked
}

// Sent says whether an item's writes have completed, as far as Pump knows: its range may change.
func (m *Mirrors) Sent(rank int, number uint64) bool {
	s := m.streams[rank]
	return s.completed >= number || s.err != nil
}

// Waits is a rank to which something has yet to be posted that is not bulk, or -1.
func (m *Mirrors) Waits() int {
	for _, s := range m.live {
		if s.err == nil && (s.urgent > 0 || s.tells) {
			return s.rank
		}
	}
	return -1
}

// Busy is a rank to which anything has yet to be posted, or -1.
func (m *Mirrors) Busy() int {
	for _, s := range m.live {
		if !s.idle() {
			return s.rank
		}
	}
	return -1
}

// Sleep returns when Pump may find something new, or after so long.
func (m *Mirrors) Sleep(most time.Duration) {
	if m.Waits() >= 0 { // the fabric may have room again
		time.Sleep(most)
		return
	}
	m.domain.Sleep(most)
}

// Pump moves on what is to be sent, and takes what has come.
func (m *Mirrors) Pump() {
	if _, err := m.domain.Poll(); err != nil && m.lost == nil && len(m.live) > 0 {
		m.live[0].fail(err)
	}
	for _, s := range m.live {
		s.take()
		s.push()
		s.complete()
	}
}

// Lost is the rank that cannot be reached any more, for a while, and why.
func (m *Mirrors) Lost() (rank int, err error) {
	if m.lost == nil || time.Since(m.lost.failed) < control.NewsTime {
		return -1, nil
	}
	return m.lost.rank, m.lost.err
}

// Fail says that a rank of another host cannot be written to any more, for a cause that an owner met in writes of its
// own.
func (m *Mirrors) Fail(rank int, cause error) { m.streams[rank].fail(cause) }

// Failing says whether some rank cannot be reached any more.
func (m *Mirrors) Failing() bool { return m.lost != nil }

package service

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/port"
)

// meeting is how this rank and another one agree on their channels.
type meeting struct {
	port atomic.Pointer[port.Peer] // once the two have connected by the fabric

	mu      sync.Mutex
	hellos  channel.Channel
	in, out []byte // two places of the board for hellos of the peer, and two for this rank's
	base    int    // of the board in the memories of the channel
	rounds  int    // that are over
	sent    []byte // the hello of the round that is not over
	taken   []bool // by number: channels that were made
}

// next is the lowest number without a channel. Number 0 is of hellos.
func (m *meeting) next() int {
	for n, taken := range m.taken {
		if !taken {
			return n
		}
	}
	return len(m.taken)
}

func (s *Service) countersSize() int {
	return s.comm.Size() * (s.options.Channels + 1) * channel.Stride
}

func (s *Service) boardSize() int { return s.comm.Size() * 4 * helloSize }

// counter is where the signals of a channel come: in a rank's segment, those of a source.
func (s *Service) counter(rank, source, number int) *channel.Counter {
	return channel.CounterAt(s.shared.Peer(rank), (source*(s.options.Channels+1)+number)*channel.Stride)
}

// maps says whether this rank and the peer map each other's windows.
func (s *Service) maps(peer int) bool { return s.shared != nil && s.shared.Peer(peer) != nil }

// semaphore is that of a memory channel. Number 0 is of hellos.
func (s *Service) semaphore(peer, number int) *channel.Semaphore {
	own := s.comm.Rank()
	return channel.NewSemaphore(s.waiter, peer, s.counter(own, peer, number), s.counter(peer, own, number))
}

// inAt and outAt are where a rank's board has the hellos from a rank, and those to it.
func inAt(rank int) int { return 2 * helloSize * rank }

func (s *Service) outAt(rank int) int { return 2 * helloSize * (s.comm.Size() + rank) }

// open makes the channel for hellos.
func (s *Service) open(ctx context.Context, op string, peer int, m *meeting) error {
	board := []byte(nil)
	switch {
	case m.hellos != nil:
		return nil
	case s.maps(peer):
		m.base = s.countersSize()
		board = s.shared.Bytes()[m.base:]
		m.hellos = channel.NewMemory(s.semaphore(peer, 0), s.shared.Bytes(), s.shared.Peer(peer)).Channel()
	case s.absent != nil:
		return s.absent
	default:
		p, err := s.reach(ctx, op, peer, m)
		if err != nil {
			return err
		}
		to, err := s.remote(p, s.board.parts[peer].card)
		if err != nil {
			return err
		}
		c, err := p.Channel(port.ChannelOptions{Signal: s.first}, to, s.board.local)
		if err != nil {
			return err
		}
		m.hellos, board = c, s.board.bytes
	}
	m.in, m.out = board[inAt(peer):][:2*helloSize], board[s.outAt(peer):][:2*helloSize]
	return nil
}

// reach connects to the peer by the fabric.
func (s *Service) reach(ctx context.Context, op string, peer int, m *meeting) (*port.Peer, error) {
	if p := m.port.Load(); p != nil {
		return p, nil
	}
	if len(s.rails.cards[peer]) == 0 {
		return nil, &weft.PeerError{Rank: peer, Op: op, Err: fmt.Errorf("%w when the service was made", weft.ErrMasked)}
	}
	p, err := s.rails.proxy.Connect(watched{ctx, s, op, peer}, peer, s.rails.cards[peer])
	if err == nil {
		m.port.Store(p)
	}
	return p, err
}

// remote is a peer's memory by its card.
func (s *Service) remote(p *port.Peer, card []byte) (*port.Remote, error) {
	m, err := p.Memory(card)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remotes[m] = struct{}{}
	}
	return m, err
}

// exchange says hello to the peer, and returns what it says. A round that was broken off goes on with the hello that
// was said.
func (s *Service) exchange(ctx context.Context, op string, peer int, m *meeting, own hello) (hello, error) {
	if err := s.open(ctx, op, peer, m); err != nil {
		return hello{}, err
	}
	place := m.rounds % 2 * helloSize
	said := make([]byte, helloSize)
	own.encode(said)
	switch {
	case m.sent == nil:
		within := watched{ctx, s, op, peer}
		if err := m.hellos.Flush(within); err != nil { // of what was in the place before
			return hello{}, err
		}
		copy(m.out[place:], said)
		to := m.base + inAt(s.comm.Rank()) + place
		if err := m.hellos.PutWithSignal(within, to, m.base+s.outAt(peer)+place, helloSize); err != nil {
			return hello{}, err
		}
		m.sent = said
	case string(m.sent) != string(said):
		return hello{}, weft.Invalidf("%s: the connection to rank %d that was broken off was another one: repeat that first",
			op, peer)
	}
	if err := s.await(ctx, op, peer, m.hellos); err != nil {
		return hello{}, err
	}
	m.rounds++
	m.sent = nil
	return decodeHello(m.in[place : place+helloSize])
}

// await consumes a signal of the peer.
func (s *Service) await(ctx context.Context, op string, peer int, c channel.Channel) error {
	p, ok := c.(*port.Channel)
	if !ok {
		return c.Wait(ctx)
	}
	var lost error
	err := s.waiter.Until(ctx, op, peer, func() bool {
		if p.Poll() {
			return true
		}
		lost = p.Err()
		return lost != nil
	})
	if lost != nil {
		return lost
	}
	return err
}

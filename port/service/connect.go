package service

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/refusal"
	"github.com/weftgo/weft/port"
)

// Kind is what carries a channel.
type Kind uint8

// The kinds of channels.
const (
	// Auto is a memory channel where both ranks map the destinations, else a port channel.
	Auto Kind = iota
	// MemoryChannel copies into memory that is mapped.
	MemoryChannel
	// PortChannel writes by the fabric.
	PortChannel
	kinds
)

// String is "memory" or "fabric", or "auto".
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return [kinds]string{"auto", "memory", "fabric"}[k]
}

// ChannelOptions are equal on both ranks.
type ChannelOptions struct {
	Kind Kind
	// Spread divides large puts of a port channel among all rails: see [port.ChannelOptions].
	Spread bool
}

// Connect makes a channel to a peer, from this rank's part of src to the peer's of dst. Both ranks call it, and it
// returns when both have; they make their channels in the same order. An argument that is wrong is an error on both.
// A call that its context has ended is made again, with the same arguments.
func (s *Service) Connect(ctx context.Context, peer int, o ChannelOptions, dst, src *Memory) (*Channel, error) {
	const op = "connect port channel"
	if err := s.gate.Enter(op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	m, err := s.meetingWith(op, peer)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	number := m.next()
	own := hello{number: uint32(number), kind: o.Kind, spread: o.Spread}
	refused := s.refuse(ctx, op, peer, m, o, dst, src)
	if refused != nil {
		own.refused = refused.Error()
		own.refused = own.refused[:min(len(own.refused), helloSize-16)]
	} else {
		own.maps = s.mapping(peer, dst) != nil
	}
	theirs, err := s.exchange(ctx, op, peer, m, own)
	if err != nil {
		return nil, s.told(ctx, op, peer, err)
	}
	if refused != nil {
		return nil, refused
	}
	kind, err := s.agree(op, peer, own, theirs)
	if err != nil {
		return nil, err
	}
	if kind == PortChannel {
		if _, err := s.reach(ctx, op, peer, m); err != nil {
			return nil, s.told(ctx, op, peer, err)
		}
	}
	return s.link(peer, m, number, kind, o.Spread, dst, src)
}

// meetingWith is where this rank makes its channels to a peer.
func (s *Service) meetingWith(op string, peer int) (*meeting, error) {
	if peer < 0 || peer >= s.comm.Size() || peer == s.comm.Rank() {
		return nil, weft.Invalidf("%s: rank %d: want another rank of %d", op, peer, s.comm.Size())
	}
	return s.meetings[peer], s.sound(op, peer)
}

// Open makes the channel of a number, from 1 to [Service.Channels], to a peer with which this rank has connected once.
// The two agree on it by means of their own: each opens the same number with the same options, of a Kind other than
// Auto, and waits for nothing. Connect takes the lowest number that is free.
func (s *Service) Open(peer, number int, o ChannelOptions, dst, src *Memory) (*Channel, error) {
	const op = "open port channel"
	if err := s.gate.Enter(op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	m, err := s.meetingWith(op, peer)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case o.Kind == Auto || o.Kind >= kinds:
		return nil, weft.Invalidf("%s: kind %v, want one that the ranks have agreed on", op, o.Kind)
	case o.Spread && o.Kind == MemoryChannel:
		return nil, weft.Invalidf("%s: Spread, which a memory channel has no rails for", op)
	case number < 1 || number > s.options.Channels || m.taken[number]:
		return nil, weft.Invalidf("%s: number %d to rank %d, want one from 1 to %d that has no channel", op, number, peer,
			s.options.Channels)
	case o.Kind == PortChannel && s.absent != nil:
		return nil, s.absent
	case o.Kind == PortChannel && m.port.Load() == nil:
		return nil, weft.Invalidf("%s: no port channel to rank %d was connected before: that makes the connection", op, peer)
	}
	if err := s.check(op, peer, dst, src); err != nil {
		return nil, err
	}
	return s.link(peer, m, number, o.Kind, o.Spread, dst, src)
}

// link makes the channel of a number that is free.
func (s *Service) link(peer int, m *meeting, number int, kind Kind, spread bool, dst, src *Memory) (*Channel, error) {
	l := &link{service: s, peer: peer, kind: kind, receiving: make(chan struct{}, 1)}
	if kind == MemoryChannel {
		l.semaphore = s.semaphore(peer, number)
	} else {
		p := m.port.Load()
		to, from, err := l.places(p, dst, src)
		if err == nil {
			l.base, err = p.Channel(port.ChannelOptions{Signal: s.first + number, Spread: spread}, to, from)
		}
		if err != nil {
			return nil, translate(err)
		}
	}
	c, err := l.between(dst, src)
	if err != nil && kind == MemoryChannel { // a port channel's number was used, whatever follows
		return nil, err
	}
	m.taken[number] = true
	s.mu.Lock()
	s.links = append(s.links, l)
	s.mu.Unlock()
	return c, err
}

// refuse is what is wrong with this rank's arguments.
func (s *Service) refuse(ctx context.Context, op string, peer int, m *meeting, o ChannelOptions,
	dst, src *Memory,
) error {
	err := refusal.Of(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	case o.Kind >= kinds:
		return weft.Invalidf("%s: kind %d", op, o.Kind)
	case o.Spread && o.Kind == MemoryChannel:
		return weft.Invalidf("%s: Spread, which a memory channel has no rails for", op)
	case m.next() > s.options.Channels:
		return weft.Unsupportedf("%s: there are %d channels to rank %d: make the service with more Channels, or use "+
			"one of them with other memories", op, s.options.Channels, peer)
	}
	return s.check(op, peer, dst, src)
}

// check refuses memories that a channel cannot have.
func (s *Service) check(op string, peer int, dst, src *Memory) error {
	switch {
	case dst == nil || src == nil:
		return weft.Invalidf("%s: no memory", op)
	case dst.service != s || src.service != s:
		return weft.Invalidf("%s: the memory is another service's", op)
	case dst.of != everyRank && dst.of != peer:
		return weft.Invalidf("%s: the destination is rank %d's alone: import the card of one of rank %d", op, dst.of, peer)
	case src.of != everyRank && src.of != s.comm.Rank():
		return weft.Invalidf("%s: the source is rank %d's: expose one of this rank", op, src.of)
	case !dst.parts[peer].known:
		return &weft.PeerError{Rank: peer, Op: op, Err: fmt.Errorf("%w when the memory was registered", weft.ErrMasked)}
	}
	return nil
}

// agree is the kind that both ranks make, by what they have said. Both come to the same.
func (s *Service) agree(op string, peer int, own, theirs hello) (Kind, error) {
	fail := func(kind error, format string, args ...any) (Kind, error) {
		return Auto, &weft.PeerError{Rank: peer, Op: op, Err: fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))}
	}
	rank, kind := s.comm.Rank(), own.kind
	switch {
	case theirs.refused != "":
		return fail(weft.ErrInvalid, "refused there: %s", theirs.refused)
	case own.number != theirs.number:
		return fail(weft.ErrMismatch, "channel %d on rank %d, %d on rank %d", own.number, rank, theirs.number, peer)
	case own.kind != theirs.kind:
		return fail(weft.ErrMismatch, "Kind: %v on rank %d, %v on rank %d", own.kind, rank, theirs.kind, peer)
	case own.spread != theirs.spread:
		return fail(weft.ErrMismatch, "Spread: %t on rank %d, %t on rank %d", own.spread, rank, theirs.spread, peer)
	case kind == Auto && own.maps && theirs.maps && !own.spread:
		return MemoryChannel, nil
	case kind == MemoryChannel && own.maps && theirs.maps:
		return MemoryChannel, nil
	case kind == MemoryChannel:
		return fail(weft.ErrUnsupported, "one of the ranks does not map the memory of the other: put it into a window of "+
			"the communicator on one host, or ask for kind fabric: a port channel")
	case s.absent != nil:
		return Auto, s.absent
	}
	return PortChannel, nil
}

// mapping is the peer's part of a memory as this rank maps it, or nil.
func (s *Service) mapping(peer int, m *Memory) []byte {
	p := m.parts[peer]
	if !s.maps(peer) {
		return nil
	}
	if p.bytes == 0 {
		return []byte{}
	}
	if !p.mapped {
		return nil
	}
	w, ok := s.ops.Window(p.window)
	if !ok {
		return nil
	}
	segment := w.Peer(peer)
	if p.offset > len(segment) || p.bytes > len(segment)-p.offset {
		return nil
	}
	return segment[p.offset : p.offset+p.bytes : p.offset+p.bytes]
}

// link is what a channel and all that are made [Channel.With] other memories have in common.
type link struct {
	service *Service
	peer    int
	kind    Kind

	base *port.Channel // a port channel, between any memories
	said atomic.Bool   // a call has returned why it failed

	semaphore *channel.Semaphore
	sending   sync.Mutex    // around its signals
	receiving chan struct{} // held by the goroutine that consumes one
}

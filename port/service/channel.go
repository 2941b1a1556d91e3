package service

import (
	"context"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/port"
)

// Channel is this rank's way to a peer's memory. It implements [channel.Channel]; any goroutine may call it.
type Channel struct {
	*link
	dst, src *Memory
	port     *port.Channel   // of a port channel
	memory   channel.Channel // of a memory channel, over what follows
	remote   []byte
}

var _ channel.Channel = (*Channel)(nil)

// places are the memories of a port channel. Where a rank has none the board stands for it, and nothing is put there.
func (l *link) places(p *port.Peer, dst, src *Memory) (to *port.Remote, from *port.Memory, err error) {
	board := l.service.board
	if from = src.local; from == nil {
		from = board.local
	}
	card := dst.parts[l.peer].card
	if len(card) == 0 {
		card = board.parts[l.peer].card
	}
	to, err = l.service.remote(p, card)
	return to, from, err
}

// between makes the channel between two memories.
func (l *link) between(dst, src *Memory) (*Channel, error) {
	const op = "port channel"
	s := l.service
	c := &Channel{link: l, dst: dst, src: src}
	if l.kind == MemoryChannel {
		if c.remote = s.mapping(l.peer, dst); c.remote == nil {
			return nil, weft.Unsupportedf("%s: this rank does not map the memory of rank %d: put it into a window", op, l.peer)
		}
		c.memory = channel.NewMemory(l.semaphore, src.bytes, c.remote).Channel()
		return c, nil
	}
	to, from, err := l.places(s.meetings[l.peer].port.Load(), dst, src)
	if err == nil {
		c.port, err = l.base.With(to, from)
	}
	if err != nil {
		return nil, translate(err)
	}
	return c, nil
}

// With is the same channel, with the same signals and the same order, between other memories.
func (c *Channel) With(dst, src *Memory) (*Channel, error) {
	const op = "port channel"
	s := c.service
	if err := s.gate.Enter(op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	if err := s.check(op, c.link.peer, dst, src); err != nil {
		return nil, err
	}
	return c.link.between(dst, src)
}

// Peer is the rank to which the channel leads.
func (c *Channel) Peer() int { return c.link.peer }

// Kind is what carries the channel: never Auto.
func (c *Channel) Kind() Kind { return c.kind }

// Bytes are the lengths of the destination and of the source.
func (c *Channel) Bytes() (dst, src int) { return c.dst.Bytes(c.link.peer), len(c.src.bytes) }

// Err is why nothing can be asked of the channel, or nil.
func (c *Channel) Err() error {
	const op = "port channel"
	s := c.service
	if err := s.gate.Enter(op); err != nil {
		return err
	}
	defer s.gate.Leave()
	if err := s.sound(op, c.link.peer); err != nil {
		return err
	}
	if c.port != nil {
		return c.told(context.Background(), op, c.port.Err())
	}
	return nil
}

// enter begins a call that gives something to the peer. Unless it returns an error the call ends with Leave of the
// gate.
func (c *Channel) enter(op string) error {
	s, peer := c.service, c.link.peer
	if err := s.gate.Enter(op); err != nil {
		return err
	}
	err := s.sound(op, peer)
	if err == nil && s.gone(peer) {
		err = &weft.PeerError{Rank: peer, Op: op, Err: weft.ErrLeft}
	}
	if err != nil {
		s.gate.Leave()
	}
	return err
}

// give pushes to the channel.
func (c *Channel) give(ctx context.Context, op string, push func(context.Context, channel.Channel) error) error {
	if err := c.enter(op); err != nil {
		return err
	}
	s, peer := c.service, c.link.peer
	defer s.gate.Leave()
	if c.port != nil {
		return c.told(ctx, op, push(watched{ctx, s, op, peer}, c.port))
	}
	if err := c.still(op); err != nil {
		return err
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	return push(ctx, c.memory)
}

// told is the service's, of a port channel.
func (c *Channel) told(ctx context.Context, op string, err error) error {
	if err != nil && c.port.Err() != nil {
		c.said.Store(true)
	}
	return c.service.told(ctx, op, c.link.peer, err)
}

// still refuses what would write to a window that this rank has closed.
func (c *Channel) still(op string) error {
	if p := c.dst.parts[c.link.peer]; p.bytes > 0 {
		if _, ok := c.service.ops.Window(p.window); !ok {
			return fmt.Errorf("%s: the window of the destination %w", op, weft.ErrClosed)
		}
	}
	return nil
}

func (c *Channel) put(ctx context.Context, dst, src, n int,
	push func(channel.Channel, context.Context, int, int, int) error,
) error {
	const op = "port put"
	peer := c.link.peer
	to, from := c.Bytes()
	switch {
	case n < 0 || src < 0 || src > from || n > from-src:
		return weft.Invalidf("%s to rank %d: %d bytes at %d of a source of %d", op, peer, n, src, from)
	case dst < 0 || dst > to || n > to-dst:
		return weft.Invalidf("%s to rank %d: %d bytes at %d of a memory of %d", op, peer, n, dst, to)
	}
	return c.give(ctx, op, func(ctx context.Context, c channel.Channel) error { return push(c, ctx, dst, src, n) })
}

// Put writes n bytes at src of this rank's memory to dst of the peer's. They must stay as they are until a Flush.
func (c *Channel) Put(ctx context.Context, dst, src, n int) error {
	return c.put(ctx, dst, src, n, channel.Channel.Put)
}

// Signal raises the peer's count of signals by one, behind all that was given to the channel before.
func (c *Channel) Signal(ctx context.Context) error {
	return c.give(ctx, "port signal", func(ctx context.Context, c channel.Channel) error { return c.Signal(ctx) })
}

// PutWithSignal is Put and Signal.
func (c *Channel) PutWithSignal(ctx context.Context, dst, src, n int) error {
	return c.put(ctx, dst, src, n, channel.Channel.PutWithSignal)
}

// PutWithSignalAndFlush is Put, Signal and Flush.
func (c *Channel) PutWithSignalAndFlush(ctx context.Context, dst, src, n int) error {
	return c.put(ctx, dst, src, n, channel.Channel.PutWithSignalAndFlush)
}

// Flush returns when the sources of what was put may change, and adds have taken effect. It fails if the peer leaves
// before that.
func (c *Channel) Flush(ctx context.Context) error {
	return c.give(ctx, "port flush", func(ctx context.Context, c channel.Channel) error { return c.Flush(ctx) })
}

// AtomicAdd adds to the 64-bit word at dst of the peer's memory, behind all that was given before. Words that this
// rank and others add to are added to by no other means.
func (c *Channel) AtomicAdd(ctx context.Context, dst int, value uint64) error {
	const op = "port add"
	if to, _ := c.Bytes(); dst < 0 || dst%8 != 0 || dst > to-8 {
		return weft.Invalidf("%s to rank %d: offset %d: want a word of 8 bytes at a multiple of 8 in a memory of %d bytes",
			op, c.link.peer, dst, to)
	}
	if c.memory != nil && uintptr(addressOf(c.remote))%8 != 0 {
		return weft.Invalidf("%s to rank %d: its memory does not begin at a multiple of 8", op, c.link.peer)
	}
	return c.give(ctx, op, func(ctx context.Context, c channel.Channel) error { return c.AtomicAdd(ctx, dst, value) })
}

// Poll consumes a signal of the peer, if there is one. It tells of no failure.
func (c *Channel) Poll() bool {
	s := c.service
	if s.gate.Enter("port poll") != nil {
		return false
	}
	defer s.gate.Leave()
	select {
	case c.receiving <- struct{}{}:
		defer func() { <-c.receiving }()
	default:
		return false // another one waits, and is first
	}
	if c.port != nil {
		return c.port.Poll()
	}
	return c.memory.Poll()
}

// Wait consumes a signal of the peer, and blocks until there is one. Signals that came before the peer left count. A
// failed Wait consumes nothing.
func (c *Channel) Wait(ctx context.Context) error {
	const op = "port wait"
	s, peer := c.service, c.link.peer
	if err := s.gate.Enter(op); err != nil {
		return err
	}
	defer s.gate.Leave()
	if err := s.sound(op, peer); err != nil {
		return err
	}
	if err := c.turn(ctx, op); err != nil {
		return err
	}
	defer func() { <-c.receiving }()
	if c.port != nil {
		return c.told(ctx, op, s.await(ctx, op, peer, c.port))
	}
	return s.told(ctx, op, peer, c.memory.Wait(ctx))
}

// turn waits until no other goroutine waits for a signal of the channel.
func (c *Channel) turn(ctx context.Context, op string) error {
	mine := func() bool {
		select {
		case c.receiving <- struct{}{}:
			return true
		default:
			return false
		}
	}
	if mine() {
		return nil
	}
	return c.service.waiter.Until(ctx, op, c.link.peer, mine)
}

// Kernel is a port channel as kernels of this rank's GPU take it, in their arguments: see package port. A signal is
// consumed either by the host or by kernels. The service is closed when no kernel runs that has it.
func (c *Channel) Kernel() (device.PortChannel, error) {
	const op = "port channel of kernels"
	if err := c.enter(op); err != nil {
		return device.PortChannel{}, err
	}
	s := c.service
	defer s.gate.Leave()
	if s.comm.Device() == nil {
		return device.PortChannel{}, weft.Unsupportedf("%s: the rank is on the host: join on a GPU", op)
	}
	if slices.Contains([]int{c.dst.Bytes(c.link.peer), len(c.src.bytes)}, 0) {
		return device.PortChannel{}, weft.Invalidf("%s: a memory has no bytes", op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernels == nil {
		k, err := s.rails.proxy.Kernels(s.comm.Device().Context())
		if err != nil {
			return device.PortChannel{}, fmt.Errorf("%s: %w", op, translate(err))
		}
		s.kernels = k
	}
	d, err := s.kernels.Channel(c.port)
	if err != nil {
		return d, translate(err)
	}
	return d, nil
}

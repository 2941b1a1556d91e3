package port

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/weftgo/weft/fabric"
)

// Channel is this rank's way to a peer's memory, and the signals between the two. What goroutines push
// to one channel takes effect in the order in which they pushed it. The calls that push return when
// the trigger is in the ring: what fails later, the next call on the channel tells.
type Channel struct {
	*lane
	dst *Remote
	src *Memory
}

// ChannelOptions are equal on both ranks.
type ChannelOptions struct {
	// Signal is the number of the channel's signal on every rail, below fabric.Options.Signals. Two
	// channels between the same ranks have different ones.
	Signal int
	// Spread divides large puts among all rails. A signal then goes over each of them, and counts when
	// all have come. Other channels keep to one rail, which follows from Signal.
	Spread bool
}

// Channel makes a channel from a memory of this rank to one of the peer.
func (p *Peer) Channel(o ChannelOptions, dst *Remote, src *Memory) (*Channel, error) {
	x := p.proxy
	if signals := x.rails[0].Signals(); o.Signal < 0 || o.Signal >= signals {
		return nil, invalid("channel to rank %d: signal %d of %d", p.rank, o.Signal, signals)
	}
	if err := p.check(dst, src); err != nil {
		return nil, err
	}
	l := &lane{proxy: x, peer: p, id: o.Signal, turn: make(chan struct{}, 1)}
	if l.rails = p.rails; !o.Spread {
		l.rails = p.rails[l.home():][:1]
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, fmt.Errorf("channel to rank %d: %w", p.rank, fabric.ErrClosed)
	}
	all := *x.lanes.Load()
	for _, other := range all {
		if other != nil && other.peer == p && other.id == l.id {
			return nil, invalid("channel to rank %d: there is one with signal %d: take another, or its With", p.rank, l.id)
		}
	}
	if len(all) == 1<<channelBits {
		return nil, invalid("channel to rank %d: a proxy has at most %d", p.rank, len(all))
	}
	l.ended, l.end = context.WithCancelCause(x.ended)
	l.number = len(all)
	add(&x.lanes, l)
	return &Channel{l, dst, src}, nil
}

// check refuses memories of others.
func (p *Peer) check(dst *Remote, src *Memory) error {
	switch {
	case dst == nil || src == nil:
		return invalid("channel to rank %d: no memory", p.rank)
	case dst.proxy != p.proxy || src.proxy != p.proxy:
		return invalid("channel to rank %d: the memory is another proxy's", p.rank)
	case dst.rank != p.rank:
		return invalid("channel to rank %d: the destination is memory of rank %d", p.rank, dst.rank)
	}
	return nil
}

// With is the same channel, with the same signals and the same order, between other memories.
func (c *Channel) With(dst *Remote, src *Memory) (*Channel, error) {
	if err := c.lane.peer.check(dst, src); err != nil {
		return nil, err
	}
	return &Channel{c.lane, dst, src}, nil
}

// Close gives the channel up, with all that are made With it: calls fail with [fabric.ErrClosed], and what was pushed
// and not posted is dropped. No kernel has it any more. No other channel of the proxy takes its signal's number.
func (c *Channel) Close() {
	x, l := c.proxy, c.lane
	x.call(func() { l.fail(fabric.ErrClosed) })
	x.mu.Lock()
	defer x.mu.Unlock()
	all := slices.Clone(*x.lanes.Load())
	all[l.number] = nil
	x.lanes.Store(&all)
}

// Peer is the rank to which the channel leads.
func (c *Channel) Peer() int { return c.lane.peer.rank }

// Err is why the channel has failed, or nil.
func (c *Channel) Err() error { return c.err() }

// Put writes n bytes at src of this rank's memory to dst of the peer's. They must stay as they are until a
// Flush. The peer sees them after the next signal.
func (c *Channel) Put(ctx context.Context, dst, src, n int) error {
	return c.push(ctx, opPut, dst, src, n)
}

// Signal raises the peer's count of signals by one, behind all that was pushed before.
func (c *Channel) Signal(ctx context.Context) error {
	_, err := c.enqueue(ctx, trigger{op: opSignal})
	return err
}

// PutWithSignal is Put and Signal, in one trigger.
func (c *Channel) PutWithSignal(ctx context.Context, dst, src, n int) error {
	return c.push(ctx, opPut|opSignal, dst, src, n)
}

// PutWithSignalAndFlush is Put, Signal and Flush, in one trigger.
func (c *Channel) PutWithSignalAndFlush(ctx context.Context, dst, src, n int) error {
	return c.push(ctx, opPut|opSignal|opFlush, dst, src, n)
}

// AtomicAdd adds to the 64-bit word at dst of the peer's memory, behind all that was pushed before. The
// peer's processor does it: see [fabric.Peer.Add].
func (c *Channel) AtomicAdd(ctx context.Context, dst int, value uint64) error {
	switch {
	case len(c.rails) > 1:
		return errSpreadAdd(c.Peer())
	case !c.dst.rails[c.home()].Word(dst):
		return invalid("add at rank %d: offset %d: want a word of 8 bytes at a multiple of 8 in a memory of %d bytes",
			c.Peer(), dst, c.dst.Bytes())
	}
	_, err := c.enqueue(ctx, trigger{op: opAdd, dst: place{uint16(c.dst.number), uint64(dst)}, value: value})
	return err
}

// Flush waits until what was pushed before has left this rank's memory, which may then change. Adds have
// taken effect.
func (c *Channel) Flush(ctx context.Context) error {
	position, err := c.enqueue(ctx, trigger{op: opFlush})
	if err != nil {
		return err
	}
	return c.awaitFlush(ctx, position)
}

func (c *Channel) awaitFlush(ctx context.Context, position uint64) error {
	return c.until(ctx, "flush", func() bool { return c.lane.flushed.Load() > position })
}

// push checks a put and pushes it.
func (c *Channel) push(ctx context.Context, op uint8, dst, src, n int) error {
	switch {
	case n < 0 || src < 0 || src > c.src.bytes || n > c.src.bytes-src:
		return invalid("put to rank %d: %d bytes at %d of a source of %d", c.Peer(), n, src, c.src.bytes)
	case !c.dst.rails[0].Holds(dst, n):
		return invalid("put to rank %d: %d bytes at %d of a memory of %d", c.Peer(), n, dst, c.dst.Bytes())
	case uint64(n) >= 1<<sizeBits:
		return invalid("put to rank %d: %d bytes: a put carries less than %d: divide it", c.Peer(), n, uint64(1)<<sizeBits)
	case c.src.closed():
		return &PeerError{Rank: c.Peer(), Op: "put", Err: fmt.Errorf("the source: %w", fabric.ErrClosed)}
	}
	position, err := c.enqueue(ctx, trigger{
		op: op, bytes: uint64(n),
		src: place{uint16(c.src.number), uint64(src)}, dst: place{uint16(c.dst.number), uint64(dst)},
	})
	if err != nil || op&opFlush == 0 {
		return err
	}
	return c.awaitFlush(ctx, position)
}

// enqueue pushes a trigger, and waits for room.
func (c *Channel) enqueue(ctx context.Context, t trigger) (position uint64, err error) {
	x := c.proxy
	t.channel = uint16(c.number)
	if err := c.err(); err != nil {
		return 0, err
	}
	position, ok := x.host.push(t)
	if !ok {
		err = c.until(ctx, opName(t.op), func() bool {
			position, ok = x.host.push(t)
			return ok
		})
	}
	if err != nil {
		return 0, err
	}
	x.rouse()
	return position, nil
}

// Poll consumes one signal of the peer, if there is one.
func (c *Channel) Poll() bool {
	select {
	case c.turn <- struct{}{}:
	default:
		return false // another one waits, and is first
	}
	defer func() { <-c.turn }()
	taken := c.taken.Load()
	if c.arrived() <= taken {
		for i := range c.rails {
			_, _ = c.domain(i).Poll() // a failure is the next call's
		}
		if c.arrived() <= taken {
			return false
		}
	}
	c.taken.Store(taken + 1)
	return true
}

// domain is the domain of one of the channel's rails.
func (l *lane) domain(i int) *fabric.Domain {
	if len(l.rails) == 1 {
		i = l.home()
	}
	return l.proxy.rails[i]
}

// Wait consumes one signal of the peer, and blocks until there is one. A failed Wait consumes nothing.
func (c *Channel) Wait(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
	default:
		select { // other waiters are first
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return &PeerError{Rank: c.Peer(), Op: "wait", Err: ended(ctx)}
		}
	}
	defer func() { <-c.turn }()
	want := c.taken.Load() + 1
	if c.arrived() < want && !c.watch(want) {
		if err := c.await(ctx, want); err != nil {
			return err
		}
	}
	c.taken.Store(want)
	return nil
}

// watch looks at the words of a channel for a while, as long as the proxy moves the fabric: two that poll would
// only take the domain's lock from each other.
func (c *Channel) watch(want uint64) bool {
	const looks = 64
	begun := time.Now()
	for i := 1; !c.proxy.asleep.Load(); i++ {
		if c.arrived() >= want {
			return true
		}
		if i%looks == 0 {
			if time.Since(begun) > c.proxy.options.Spin || c.failed.Load() != nil {
				return false
			}
			runtime.Gosched()
		}
	}
	return false
}

// await waits on each rail.
func (c *Channel) await(ctx context.Context, want uint64) error {
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ended, func() { cancel(context.Cause(c.ended)) })()
	if _, ok := ctx.Deadline(); !ok {
		var done context.CancelFunc
		both, done = context.WithTimeout(both, c.proxy.options.Timeout)
		defer done()
	}
	for _, r := range c.rails {
		if err := r.Await(both, c.id, want); err != nil {
			if own := c.err(); own != nil {
				return own
			}
			if failed, ok := errors.AsType[*PeerError](err); ok {
				return &PeerError{Rank: failed.Rank, Op: "wait", Err: failed.Err}
			}
			return err
		}
	}
	return nil
}

// until waits for the proxy. It spins, yields, then naps.
func (c *Channel) until(ctx context.Context, op string, done func() bool) error {
	const spins = 200
	var begun time.Time
	nap := 10 * time.Microsecond
	for i := 0; !done(); i++ {
		if err := c.err(); err != nil {
			return err
		}
		if i < spins {
			continue
		}
		now := time.Now()
		if begun.IsZero() {
			begun = now
		}
		if ctx.Err() != nil {
			return &PeerError{Rank: c.Peer(), Op: op, Err: ended(ctx)}
		}
		waited := now.Sub(begun)
		if _, ok := ctx.Deadline(); !ok && waited > c.proxy.options.Timeout {
			return &PeerError{Rank: c.Peer(), Op: op, Err: fmt.Errorf("%w: the proxy has not come to it in %v",
				fabric.ErrTimeout, waited.Round(time.Millisecond))}
		}
		if waited < c.proxy.options.Spin {
			runtime.Gosched()
			continue
		}
		time.Sleep(nap)
		nap = min(2*nap, time.Millisecond)
	}
	return nil
}

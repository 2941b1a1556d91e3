package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// Peer is a rank that this one writes to. Its methods may be called from any goroutine; what one
// goroutine calls takes effect in that order.
type Peer struct {
	d    *Domain
	rank int

	// Under the domain's lock.
	cause      error // why nothing is written to it any more
	connected  bool
	warm       bool          // a write to it has completed
	refused    time.Time     // when the endpoint, without anything underway, last turned a write to it away
	refusedFor time.Duration // and for how long it has
	address    provider.Address
	base, key  uint64 // of its board
	password   uint64 // of its queue, as the upper half of what writes bring

	posted uint64    // writes of any kind
	done   sequence  // those that have completed
	writes uint64    // plain ones, which signals cover
	sent   []uint64  // values of signals
	raised uint64    // signals, where writes arrive in order and words do not land whole
	unsure time.Time // since when nothing that was posted will say whether the last raise has landed; zero: something

	asked    uint64       // requests
	executed uint64       // as far as the peer has told
	adds     uint64       // requests up to the last add
	slots    [ring]uint64 // how many writes must have completed before a slot is written again
	covers   [ring]uint64 // how many plain writes the request in a slot covers
	covered  uint64       // plain writes that have arrived, as far as the peer has told
	marked   uint64       // plain writes that a request covers to which an answer will come

	served server
}

// server is what a domain knows of a source rank's requests to it.
type server struct {
	writes    sequence  // that have arrived, where they come in any order
	raised    uint64    // signals that have arrived
	missing   time.Time // since when the source is to hear that some have not
	requests  sequence
	executed  uint64
	told      uint64
	wanted    bool // the source waits for an answer
	refused   bool // one of them named no region
	owing     bool
	answering bool
}

// peer is the state of a rank. The lock is held.
func (d *Domain) peer(rank int) *Peer {
	p := d.peers[rank]
	if p == nil {
		p = &Peer{d: d, rank: rank, sent: make([]uint64, d.options.Signals)}
		d.peers[rank] = p
	}
	return p
}

// Connect makes a rank reachable by the card of its domain, and returns when a first write to it has
// completed. Both ranks connect to each other before either writes.
func (d *Domain) Connect(ctx context.Context, rank int, card []byte) (*Peer, error) {
	const op = "connect"
	if rank < 0 || rank >= d.options.Size {
		return nil, invalid("connect: rank %d of %d", rank, d.options.Size)
	}
	c, err := decodeDomain(card)
	if err == nil {
		err = d.fits(rank, c)
	}
	if err != nil {
		return nil, &PeerError{Rank: rank, Op: op, Err: fmt.Errorf("%w: %w", ErrMismatch, err)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peer(rank)
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if p.connected {
		return p, nil
	}
	if p.address, err = d.endpoint.Insert(c.Name); err != nil {
		return nil, &PeerError{Rank: rank, Op: op, Err: fmt.Errorf("%w: %w", ErrLost, err)}
	}
	p.connected, p.base, p.key, p.password = true, c.Base, c.Key, uint64(c.Password)<<32
	w := wait{d: d, ctx: ctx}
	defer w.end()
	err = p.repeat(&w, op, func() error { return p.notice(op) })
	if err == nil {
		err = p.await(&w, op, func() bool { return p.done.next == p.posted })
	}
	if err == nil {
		err = p.usable(op)
	}
	if err != nil {
		return nil, err
	}
	p.warm = true
	return p, nil
}

// notice tries to tell the peer how many signals were raised. It completes when they have landed.
func (p *Peer) notice(op string) error {
	return p.try(op, func(post *provider.Post) error {
		p.inline(post, wordSize, p.d.board.unread())
		post.Data, post.HasData = data(kindNotice, p.d.options.Rank, p.raised), true
		return nil
	})
}

// fits says how a peer's domain differs from this one.
func (d *Domain) fits(rank int, c domainCard) error {
	o, caps := d.options, d.caps
	switch {
	case int(c.Rank) != rank || int(c.Size) != o.Size:
		return fmt.Errorf("the card is that of rank %d of %d, not of %d of %d", c.Rank, c.Size, rank, o.Size)
	case c.Provider != caps.Provider:
		return fmt.Errorf("it has provider %s, this rank %s: name one of them in FI_PROVIDER, on every rank",
			c.Provider, caps.Provider)
	case int(c.Signals) != o.Signals:
		return fmt.Errorf("it has %d signals, this rank %d", c.Signals, o.Signals)
	case c.Ordered != caps.Ordered || c.Words != caps.Words:
		return fmt.Errorf("its writes are ordered %v and whole %v, this rank's %v and %v",
			c.Ordered, c.Words, caps.Ordered, caps.Words)
	case int(c.DataBytes) != caps.DataBytes:
		return fmt.Errorf("its writes bring %d bytes to the queue, this rank's %d: take the same libfabric on every rank",
			c.DataBytes, caps.DataBytes)
	}
	return nil
}

// Rank is the peer's.
func (p *Peer) Rank() int { return p.rank }

// Region makes a peer's region known by its card.
func (p *Peer) Region(card []byte) (Remote, error) {
	c, err := decodeRegion(card)
	if err == nil && int(c.Rank) != p.rank {
		err = fmt.Errorf("the card is that of rank %d", c.Rank)
	}
	if err != nil {
		return Remote{}, &PeerError{Rank: p.rank, Op: "region", Err: fmt.Errorf("%w: %w", ErrMismatch, err)}
	}
	return Remote{p.rank, c.Base, c.Key, c.Length, c.Aligned}, nil
}

// Write posts a write of n bytes of a region of this rank into one of the peer's, and returns when the
// fabric has taken it. The bytes must stay as they are until [Peer.Flush]. They land in any order,
// before any later Signal or Add to the peer takes effect.
func (p *Peer) Write(ctx context.Context, to Remote, at int, from *Region, offset, n int) error {
	const op = "write"
	if err := p.checkWrite(to, at, from, offset, n); err != nil {
		return err
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	w := wait{d: d, ctx: ctx}
	defer w.end()
	for n > 0 {
		part := 0
		if err := p.repeat(&w, op, func() (err error) {
			part, err = p.write(to, at, from, offset, n)
			return err
		}); err != nil {
			return err
		}
		n, at, offset = n-part, at+part, offset+part
	}
	return nil
}

// checkWrite refuses a write that lies outside of its regions, and one between regions of others.
func (p *Peer) checkWrite(to Remote, at int, from *Region, offset, n int) error {
	switch {
	case to.rank != p.rank:
		return invalid("write to rank %d: the region is rank %d's", p.rank, to.rank)
	case from.d != p.d:
		return invalid("write to rank %d: the source is a region of another domain", p.rank)
	case n < 0 || offset < 0 || offset > len(from.memory) || n > len(from.memory)-offset:
		return invalid("write to rank %d: %d bytes at %d of a source of %d", p.rank, n, offset, len(from.memory))
	case !to.Holds(at, n):
		return invalid("write to rank %d: %d bytes at %d of a region of %d", p.rank, n, at, to.length)
	}
	return nil
}

// write tries to post as much as one write carries, and tells how much that was.
func (p *Peer) write(to Remote, at int, from *Region, offset, n int) (int, error) {
	const op = "write"
	d := p.d
	if err := p.mark(op); err != nil {
		return 0, err
	}
	part := min(n, d.caps.MaxWrite)
	err := p.try(op, func(post *provider.Post) error {
		if err := p.fill(post, to, at, from, offset, part); err != nil {
			return err
		}
		if post.HasData = !d.caps.Ordered; post.HasData {
			if p.writes-p.covered >= span {
				return provider.ErrAgain
			}
			post.Data = data(kindWrite, d.options.Rank, p.writes)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	p.writes++
	return part, nil
}

// fill fills a write between two regions.
func (p *Peer) fill(post *provider.Post, to Remote, at int, from *Region, offset, n int) error {
	if err := from.usable(); err != nil {
		return err
	}
	post.From, post.Local, post.Bytes = unsafe.Pointer(&from.memory[offset]), from.granted, n
	post.Remote, post.Key = to.base+uint64(at), to.key
	return nil
}

// mark asks the peer to tell how far writes have arrived, before more of them are underway than it can
// tell apart.
func (p *Peer) mark(op string) error {
	if p.d.caps.Ordered || p.writes-max(p.marked, p.covered) < span/2 {
		return nil
	}
	err := p.request(op, func() request { return request{kind: requestMark} })
	if err == nil {
		p.marked = p.writes
	}
	return err
}

// Signal adds one to a signal of this rank at the peer. The peer sees the new value when all that this
// rank posted to it before has landed and, of adds, taken effect.
func (p *Peer) Signal(ctx context.Context, id int) error {
	const op = "signal"
	if err := p.checkSignal(id); err != nil {
		return err
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	w := wait{d: d, ctx: ctx}
	defer w.end()
	return p.repeat(&w, op, func() error { return p.signal(id) })
}

func (p *Peer) checkSignal(id int) error {
	if id < 0 || id >= p.d.options.Signals {
		return invalid("signal %d to rank %d: there are %d", id, p.rank, p.d.options.Signals)
	}
	return nil
}

// signal tries to post a signal.
func (p *Peer) signal(id int) error {
	const op = "signal"
	d := p.d
	var err error
	switch {
	case p.raises():
		return p.raise(op, id, func(post *provider.Post) error {
			p.inline(post, wordSize, d.board.unread())
			return nil
		})
	case !d.caps.Ordered:
		err = p.request(op, func() request {
			return request{kind: requestSignal, offset: uint64(id), value: p.sent[id] + 1}
		})
	default:
		// The value itself goes behind the data. An add is executed by the peer's processor, so it must be
		// waited for.
		err = p.try(op, func(post *provider.Post) error {
			if p.executed < p.adds {
				return provider.ErrAgain
			}
			binary.NativeEndian.PutUint64(d.board.line(post.Token), p.sent[id]+1)
			p.inline(post, wordSize, id*wordSize)
			post.Data, post.HasData = data(kindNotice, d.options.Rank, 0), true
			return nil
		})
	}
	if err == nil {
		p.sent[id]++
	}
	return err
}

// raises says whether signals are counted by the peer's domain as they arrive: where writes are ordered, but the word
// of a signal would not land whole.
func (p *Peer) raises() bool { return p.d.caps.Ordered && !p.d.caps.Words }

// raise tries to post a write that brings a signal. It completes when its source may change.
func (p *Peer) raise(op string, id int, fill func(*provider.Post) error) error {
	err := p.try(op, func(post *provider.Post) error {
		post.Data, post.HasData = data(kindRaise, p.d.options.Rank, p.raised<<idBits|uint64(id)), true
		post.Early = true
		return fill(post)
	})
	if err == nil {
		p.raised++
		p.sent[id]++
	}
	return err
}

// Add adds to the 64-bit word at an offset of a peer's region. The peer's host executes it, by an atomic
// add, after all that this rank posted to the peer before. Words that peers add to must not be written
// in another way. [Peer.Flush] waits for it.
func (p *Peer) Add(ctx context.Context, to Remote, at int, value uint64) error {
	if err := p.checkAdd(to, at); err != nil {
		return err
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	w := wait{d: d, ctx: ctx}
	defer w.end()
	return p.repeat(&w, "add", func() error { return p.add(to, at, value) })
}

func (p *Peer) checkAdd(to Remote, at int) error {
	switch {
	case to.rank != p.rank:
		return invalid("add at rank %d: the region is rank %d's", p.rank, to.rank)
	case !to.Holds(at, wordSize):
		return invalid("add at rank %d: a word at %d of a region of %d bytes", p.rank, at, to.length)
	case at%wordSize != 0 || !to.aligned:
		return invalid("add at rank %d: offset %d: the word's address must be a multiple of 8", p.rank, at)
	}
	return nil
}

// add tries to post an add.
func (p *Peer) add(to Remote, at int, value uint64) error {
	err := p.request("add", func() request {
		return request{kind: requestAdd, key: to.key, offset: uint64(at), value: value}
	})
	if err == nil {
		p.adds = p.asked
	}
	return err
}

// Flush waits until what was posted to the peer before has completed: the bytes that it was written
// from may change, adds have taken effect and, if [Capabilities].Delivered, bytes have landed.
func (p *Peer) Flush(ctx context.Context) error {
	const op = "flush"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	w := wait{d: d, ctx: ctx}
	defer w.end()
	if !p.unsure.IsZero() {
		if err := p.repeat(&w, op, func() error { return p.notice(op) }); err != nil {
			return err
		}
	}
	posted, adds := p.posted, p.adds
	if err := p.await(&w, op, func() bool { return p.done.next >= posted && p.executed >= adds }); err != nil {
		return err
	}
	return p.usable(op) // a write that failed has completed, too
}

// Settle waits until all that was posted to the peer before has landed, whatever the provider's completions say.
func (p *Peer) Settle(ctx context.Context) error {
	const op = "settle"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	w := wait{d: d, ctx: ctx}
	defer w.end()
	var err error
	if p.raises() { // a signal of before may be missing there, which nobody has noticed yet
		err = p.repeat(&w, op, func() error { return p.notice(op) })
	}
	if err == nil {
		err = p.repeat(&w, op, func() error {
			return p.request(op, func() request { return request{kind: requestMark} })
		})
	}
	asked := p.asked
	if err == nil {
		err = p.await(&w, op, func() bool { return p.executed >= asked })
	}
	return err
}

// Signalled is the value of a signal that the peer raises here: how often it has called Signal.
// Of an id beyond [Options].Signals it is 0.
func (p *Peer) Signalled(id int) uint64 {
	if id < 0 || id >= p.d.options.Signals {
		return 0
	}
	return p.d.board.signal(p.rank, id).Load()
}

// Await waits until a signal that the peer raises here has reached a value.
func (p *Peer) Await(ctx context.Context, id int, value uint64) error {
	d := p.d
	if id < 0 || id >= d.options.Signals {
		return invalid("await signal %d of rank %d: there are %d", id, p.rank, d.options.Signals)
	}
	word := d.board.signal(p.rank, id)
	if word.Load() >= value {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := wait{d: d, ctx: ctx}
	defer w.end()
	return p.await(&w, "await", func() bool { return word.Load() >= value })
}

// Err is why nothing is written to the peer any more, or nil.
func (p *Peer) Err() error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.cause
}

// Fail ends all calls for the peer with a cause that comes from elsewhere: a rank's heartbeat stopped,
// say, of which networks tell nothing. The first cause stays.
func (p *Peer) Fail(cause error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.fail(cause)
}

func (p *Peer) fail(cause error) {
	if p.cause == nil {
		p.cause = cause
		p.doubt(false)
	}
}

// Close ends the connection to the peer. What it has underway to this rank is cut off, where the
// provider can.
func (p *Peer) Close() error {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p.fail(ErrClosed)
	if !p.connected || d.failed() != nil {
		return nil
	}
	p.connected = false
	return d.endpoint.Remove(p.address)
}

// usable is why nothing can be posted to the peer.
func (p *Peer) usable(op string) error {
	if err := p.d.failed(); err != nil {
		return fmt.Errorf("%s to rank %d: %w", op, p.rank, err)
	}
	if p.cause != nil {
		return &PeerError{Rank: p.rank, Op: op, Err: p.cause}
	}
	return nil
}

// try posts a write, if fill does not ask to try again and the endpoint takes it. The lock is held.
func (p *Peer) try(op string, fill func(*provider.Post) error) error {
	d := p.d
	if err := p.usable(op); err != nil {
		return err
	}
	n := len(d.free)
	if n == 0 || p.posted-p.done.next >= span {
		return provider.ErrAgain
	}
	d.post = provider.Post{Token: d.free[n-1], To: p.address}
	if err := fill(&d.post); errors.Is(err, provider.ErrAgain) {
		return err
	} else if err != nil {
		return fmt.Errorf("%s to rank %d: %w", op, p.rank, err)
	}
	d.post.Data |= p.password
	switch err := d.endpoint.Write(&d.post); {
	case err == nil:
	case errors.Is(err, provider.ErrAgain):
		if !p.gone() {
			return err
		}
		p.fail(fmt.Errorf("%w: libfabric has taken no write to it for %v: its process or its network has ended",
			ErrLost, lostAfter))
		return p.usable(op)
	default:
		if failure, ok := errors.AsType[*ProviderError](err); ok {
			p.fail(fmt.Errorf("%w: %s: %w", ErrLost, op, failure))
			return p.usable(op)
		}
		return fmt.Errorf("%s to rank %d: %w", op, p.rank, err)
	}
	d.free = d.free[:n-1]
	d.operations[d.post.Token] = operation{peer: p, number: p.posted, name: op}
	p.posted++
	p.refused = time.Time{}
	p.doubt(d.post.Early)
	return nil
}

// doubt takes note of a write that was posted: whether it completes early. A later one that does not completes when
// both have landed.
func (p *Peer) doubt(early bool) {
	switch {
	case !early && !p.unsure.IsZero():
		p.unsure = time.Time{}
		p.d.unsure--
	case early && p.unsure.IsZero():
		p.unsure = time.Now()
		p.d.unsure++
	}
}

// probeAfter is how long a signal may be the last that was posted to a peer before a notice goes behind it. A
// connection that was reset may have lost it when its write had completed, and libfabric connects again: the peer
// counts signals and misses it.
const probeAfter = 50 * time.Millisecond

// probe posts notices that are due. What the endpoint does not take now comes later.
func (d *Domain) probe() {
	if d.unsure == 0 || d.failed() != nil {
		return
	}
	for _, p := range d.peers {
		if p != nil && p.cause == nil && !p.unsure.IsZero() && time.Since(p.unsure) > probeAfter {
			_ = p.notice("probe") // what fails is the end of the peer
		}
	}
}

// lostAfter is how long an idle endpoint may turn away writes to a peer that it was connected to. It is a part of the
// second within which a reset connection is told: probeAfter comes before it and the wait for news of why after it.
const lostAfter = 250 * time.Millisecond

// gone says whether a write that was turned away means that the peer's connection has ended: nothing else is
// underway that could fill the endpoint, so libfabric must be trying to connect again. It says nothing
// of an ended connection unless a write is underway. Of the time between two tries a sixteenth of the limit counts at
// most: a process without a processor, which alone would have the endpoint go on, has not tried.
func (p *Peer) gone() bool {
	if !p.warm || len(p.d.free) != cap(p.d.free) {
		p.refused = time.Time{}
		return false
	}
	now := time.Now()
	if p.refused.IsZero() {
		p.refusedFor = 0
	} else {
		p.refusedFor += min(now.Sub(p.refused), lostAfter/16)
	}
	p.refused = now
	return p.refusedFor > lostAfter
}

// repeat takes turns until what is tried is taken. The lock is let go between tries only: what a try sees
// of the peer holds for its write.
func (p *Peer) repeat(w *wait, op string, try func() error) error {
	for {
		if err := try(); !errors.Is(err, provider.ErrAgain) {
			return err
		}
		if err := w.turn(); err != nil {
			return p.late(op, err)
		}
	}
}

// await takes turns until something is true.
func (p *Peer) await(w *wait, op string, reached func() bool) error {
	for !reached() {
		if err := p.usable(op); err != nil {
			return err
		}
		if err := w.turn(); err != nil {
			return p.late(op, err)
		}
	}
	return nil
}

// late is the error of a wait that ended; the peer is named unless the domain is the reason.
func (p *Peer) late(op string, err error) error {
	if p.d.failed() != nil {
		return p.usable(op)
	}
	return &PeerError{Rank: p.rank, Op: op, Err: err}
}

// inline fills a write of what the token's line has to an offset of this rank's part of the peer's board.
func (p *Peer) inline(post *provider.Post, n, offset int) {
	d := p.d
	post.From, post.Local = unsafe.Pointer(unsafe.SliceData(d.board.line(post.Token))), d.boardMemory
	post.Bytes = n
	post.Remote, post.Key = p.base+uint64(d.options.Rank*d.board.part+offset), p.key
}

// request tries to write a request into the peer's board.
func (p *Peer) request(op string, build func() request) error {
	d := p.d
	slot := int(p.asked % ring)
	if p.asked-p.executed >= ring || p.done.next < p.slots[slot] {
		if err := p.usable(op); err != nil {
			return err
		}
		return provider.ErrAgain
	}
	err := p.try(op, func(post *provider.Post) error {
		r := build()
		if !d.caps.Ordered {
			r.covers = p.writes
		}
		p.covers[slot] = r.covers
		r.encode(d.board.line(post.Token))
		p.inline(post, requestSize, d.board.ring()+slot*line)
		post.Data, post.HasData = data(kindRequest, d.options.Rank, p.asked), true
		return nil
	})
	if err == nil {
		p.asked++
		p.slots[slot] = p.posted
	}
	return err
}

package host

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// exchange is a call of point-to-point in progress. An engine has one, used again and again.
//
// Invariants. The parts from one rank to another are numbered, and taken in that order. A rank publishes
// part n only when it has seen part n - parts taken, which it overwrites, and read the outcome of
// every message before that.
type exchange struct {
	*call
	mailboxes
	pairs      []pair // by rank
	pool       []lent // by chunk
	shows      shown  // what the next part has in the pool, for a peer of another host
	far        bool   // some message of this call is for one
	cursor     int    // in the pool: chunks are used in turn, so that a line has left its readers' caches
	generation uint64

	ctx      context.Context
	refused  error
	messages []message
	active   []*pair // with messages of this call
	over     int     // messages
	err      error   // the communicator's failure
	look     func() bool
}

// pair is a rank's side of the messages with one peer.
type pair struct {
	peer         int
	far          bool // on another host: mine is shown there, and theirs here, by the rounds' mirrors
	mine, theirs mailbox

	sent    uint64 // the last part published
	seen    uint64 // the peer's receipt
	taken   uint64 // the last part taken
	said    uint64 // this rank's receipt
	differs uint64 // in it

	sends, receives queue    // that are not over
	publish         *message // the next send that has parts to be published
	listed          bool
}

// message is a send or a receive in progress.
type message struct {
	*spec.Transfer
	bytes  []byte
	call   uint64
	next   *message // of the pair in this direction
	first  uint64   // the number of its first part; 0: none yet
	parts  int      // of a send, in all
	done   int      // of a send, published
	agreed bool     // the receiver wants a send as it is
	at     int      // bytes moved
	err    error
}

// queue is the messages of a pair in one direction.
type queue struct{ first, last *message }

func (q *queue) add(m *message) {
	if q.first == nil {
		q.first = m
	} else {
		q.last.next = m
	}
	q.last = m
}

// lent is the part that a chunk was last used for.
type lent struct {
	pair   *pair
	number uint64
	told   uint64 // to a peer of another host: see Rounds.Told
}

// shown is a range of this rank's own bytes.
type shown struct {
	chunk    *lent
	from, to int
}

func newExchange(c *call, m mailboxes) *exchange {
	x := &exchange{
		call: c, mailboxes: m, pairs: make([]pair, m.ranks), pool: make([]lent, m.chunks),
	}
	own := c.Comm.Rank()
	for r := range x.pairs {
		p := &x.pairs[r]
		p.peer, p.far, p.mine = r, c.Far(r), m.of(c.OwnBytes(own), r)
		if theirs := c.OwnBytes(r); theirs != nil {
			p.theirs = m.of(theirs, own)
		}
	}
	x.look = x.progress
	return x
}

// Exchange implements [spec.Engine].
func (e *Engine) Exchange(ctx context.Context, s *weft.Stream, given *spec.Call, refused error) error {
	x := e.exchange
	if refused == nil {
		refused = onHost(s, given)
	}
	x.given, x.name = given, given.Name()
	x.ctx, x.refused, x.err = ctx, refused, nil
	x.begin()
	x.enlist()
	x.Messages(true)
	err := x.run()
	x.Messages(false)
	x.ctx, x.refused = nil, nil
	clear(x.messages)
	for _, p := range x.active {
		p.sends, p.receives, p.publish, p.listed = queue{}, queue{}, nil, false
	}
	x.active = x.active[:0]
	return err
}

// begin follows the communicator to its generation, in which all numbers begin anew.
func (x *exchange) begin() {
	g := x.Comm.Operations().Generation()
	if g == x.generation {
		return
	}
	x.generation = g
	var s channel.Sequence
	s.Begin(g)
	for i := range x.pairs {
		p := &x.pairs[i]
		p.sent, p.taken, p.seen, p.said = s.Last(), s.Last(), 2*s.Last(), 2*s.Last()
	}
	clear(x.pool)
}

// enlist makes messages of the call's transfers, in order, and moves those of this rank to itself. A
// rank that refuses tells all peers that it names.
func (x *exchange) enlist() {
	own, all := x.Comm.Rank(), x.given.Transfers
	if cap(x.messages) < len(all) {
		x.messages = make([]message, 0, len(all))
	}
	x.messages, x.over, x.far = x.messages[:0], 0, false
	call := uint64(0)
	if x.refused != nil {
		call = enginehost.RefusedCall | uint64(enginehost.PutRefusal(x.text(x.OwnBytes(own)), x.refused))
	} else {
		x.moveOwn(own)
	}
	for i := range all {
		t := &all[i]
		if t.Peer == own || x.refused != nil && (t.Peer < 0 || t.Peer >= x.ranks || x.Comm.Masked(t.Peer)) {
			continue
		}
		x.messages = append(x.messages, message{Transfer: t, call: call, parts: 1})
		m, p := &x.messages[len(x.messages)-1], &x.pairs[t.Peer]
		if x.refused == nil {
			m.call, m.bytes = uint64(t.Fingerprint()), t.Tensor.Raw()
		}
		if !p.listed {
			p.listed = true
			x.far = x.far || p.far
			x.active = append(x.active, p)
		}
		if t.Receive {
			p.receives.add(m)
			continue
		}
		p.sends.add(m)
		if p.publish == nil {
			p.publish = m
		}
	}
}

// moveOwn moves the messages of this rank to itself.
func (x *exchange) moveOwn(own int) {
	c, n := x.given, len(x.given.Transfers)
	for s, r := c.NextOwn(own, false, 0), c.NextOwn(own, true, 0); s < n && r < n; {
		copy(c.Transfers[r].Tensor.Raw(), c.Transfers[s].Tensor.Raw())
		s, r = c.NextOwn(own, false, s+1), c.NextOwn(own, true, r+1)
	}
}

func (x *exchange) run() error {
	for x.over < len(x.messages) && x.err == nil {
		if x.progress() {
			continue
		}
		if err := x.await(); err != nil {
			return x.Comm.Operations().Fail(err)
		}
	}
	if x.err != nil {
		return x.err
	}
	if x.far {
		if err := x.AwaitTold(x.ctx, x.name); err != nil {
			return err
		}
	}
	// If this rank was told of a failure meanwhile, the others may have gone on without it.
	if err := x.Comm.Operations().Begin(x.name); err != nil {
		return err
	}
	if x.refused != nil {
		return x.refused
	}
	for i := range x.messages {
		if err := x.messages[i].err; err != nil {
			return err
		}
	}
	return nil
}

// await says which messages this rank wants next, and waits until something can move. A counter wakes the
// rank if one message is left; several are looked at in turn.
func (x *exchange) await() error {
	var first *pair
	for _, p := range x.active {
		m := p.receives.first
		if m != nil && m.first == 0 {
			x.want(p, m, p.taken+1)
		}
		if first == nil && (m != nil || p.sends.first != nil) {
			first = p
		}
	}
	switch p := first; {
	case x.far:
		return x.AwaitFar(x.ctx, x.name, p.peer, x.look)
	case len(x.messages)-x.over > 1:
		return x.Waiter().Until(x.ctx, x.name, p.peer, x.look)
	case p.sends.first != nil:
		return x.Waiter().Wait(x.ctx, p.theirs.number(), p.seen+1, x.name, p.peer)
	default:
		return x.Waiter().Wait(x.ctx, p.theirs.at(p.taken+1).number(), p.taken+1, x.name, p.peer)
	}
}

// progress moves what can be moved, and reports whether anything was.
func (x *exchange) progress() (moved bool) {
	if x.far {
		x.Pump()
	}
	for _, p := range x.active {
		if p.sends.first != nil {
			moved = x.send(p) || moved
		}
		if p.receives.first != nil && x.err == nil {
			moved = x.receive(p) || moved
		}
	}
	return moved || x.err != nil
}

// send reads the receipts of the pair's sends, and publishes parts.
func (x *exchange) send(p *pair) (moved bool) {
	if seen := p.theirs.number().Load(); seen > p.seen {
		p.seen, moved = seen, true
	}
	for m := p.sends.first; m != nil && m.first != 0; m = p.sends.first {
		if !m.agreed && p.refuses(m) {
			m.err = x.differ(p, m, p.theirs.wanted[m.first%wants])
			if p.publish == m { // the receiver wants no more of it
				p.publish = m.next
			}
		} else if !m.agreed || m.done < m.parts ||
			len(m.bytes) > inPart && p.seen < 2*(m.first+uint64(m.parts)-1) {
			break
		}
		p.sends.first = m.next
		x.over++
		moved = true
	}
	for m := p.publish; m != nil && x.put(p, m); m = p.publish {
		moved = true
		if m.done == m.parts {
			p.publish = m.next
		}
	}
	return moved
}

// refuses reads what the receiver says of a message: that it has taken it, or not, or wants it.
func (p *pair) refuses(m *message) bool {
	switch n := m.first; {
	case p.seen >= 2*n:
		m.agreed = p.theirs.differs.Load()>>(n%64)&1 == 0
		return !m.agreed
	case p.seen == 2*n-1:
		// The word may be one for a later message, if the receipt is.
		m.agreed = atomic.LoadUint64(&p.theirs.wanted[n%wants]) == m.call && p.theirs.number().Load() == p.seen
	}
	return false
}

// put publishes the next part of a message, if there is room for it.
func (x *exchange) put(p *pair, m *message) bool {
	n := p.sent + 1
	if n > p.seen/2+uint64(x.parts) {
		return false
	}
	line := p.mine.at(n)
	switch {
	case m.first != 0:
		if !m.agreed || !x.fill(p, m, line.place(), 0) {
			return false
		}
	case len(m.bytes) <= inPart:
		copy(line.data[:], m.bytes)
	default:
		x.describe(p, m, line.place())
	}
	if m.first == 0 {
		m.first = n
		line.call = m.call
	}
	m.done++
	p.sent = n
	x.signal(p, line.number(), n)
	return true
}

// signal publishes a part or a receipt.
func (x *exchange) signal(p *pair, c *channel.Counter, n uint64) {
	c.Publish(n)
	if p.far {
		x.tell(p, c, n)
	}
	if x.Step != nil {
		x.Step()
	}
}

// tell shows a part or a receipt to a peer of another host, with what lies in the pool. A rank that refuses shows why.
func (x *exchange) tell(p *pair, c *channel.Counter, n uint64) {
	own, s := x.OwnBytes(x.Comm.Rank()), x.shows
	x.shows = shown{}
	if x.refused != nil {
		s = shown{nil, x.textAt(), x.poolAt()}
	}
	at := int(uintptr(unsafe.Pointer(c)) - uintptr(pointer(own)))
	told := x.Tell(p.peer, at, channel.Stride-channel.CounterBytes, n, s.from, s.to)
	if s.chunk != nil {
		s.chunk.told = told
	}
}

// describe says where a message lies: in a window, or in chunks. The first of these is filled before the
// receiver reads, as long as half of the pool is left for messages that are being read: they, and so
// all, go on.
func (x *exchange) describe(p *pair, m *message, at *place) {
	if w, offset, ok := x.Comm.Operations().Find(pointer(m.bytes), len(m.bytes)); ok && w.Peer(p.peer) != nil {
		*at = place{w.ID(), uint64(offset)}
		return
	}
	m.parts = (len(m.bytes) + x.chunkBytes - 1) / x.chunkBytes
	if !x.fill(p, m, at, x.chunks/2) {
		m.parts++
		*at = place{offset: announced}
	}
}

// fill puts the next bytes of a message into the pool, if more than so many chunks are free.
func (x *exchange) fill(p *pair, m *message, at *place, others int) bool {
	found, free := 0, 0
	for k := 0; k < x.chunks && free <= others; k++ {
		i := (x.cursor + k) % x.chunks
		if c := &x.pool[i]; c.pair != nil && (c.pair.seen < 2*c.number || c.pair.far && !x.Told(c.pair.peer, c.told)) {
			continue
		}
		if free == 0 {
			found = i
		}
		free++
	}
	if free <= others {
		return false
	}
	x.pool[found] = lent{pair: p, number: p.sent + 1}
	x.cursor = (found + 1) % x.chunks
	n := min(x.chunkBytes, len(m.bytes)-m.at)
	*at = place{offset: uint64(found * x.chunkBytes)}
	x.stage(x.piece(x.OwnBytes(x.Comm.Rank()), at.offset, n), m.bytes[m.at:][:n])
	m.at += n
	if p.far {
		from := x.poolAt() + found*x.chunkBytes
		x.shows = shown{&x.pool[found], from, from + n}
	}
	return true
}

// receive takes parts for the pair's receives.
func (x *exchange) receive(p *pair) (moved bool) {
	for m := p.receives.first; m != nil; m = p.receives.first {
		n := p.taken + 1
		line := p.theirs.at(n)
		if line.number().Load() < n {
			return moved
		}
		moved = true
		if m.first == 0 {
			m.first = n
			if line.call != m.call || x.refused != nil {
				m.err = x.differ(p, m, line.call)
			}
			p.say(n, m)
		}
		if m.err == nil && !x.read(p, m, line) {
			return true
		}
		p.taken = n
		// The sender of a short message goes by what this rank has said that it wants. Its next receipt says the rest.
		if m.err != nil || len(m.bytes) > inPart || p.said < 2*n-1 {
			x.receipt(p, 2*n)
		}
		if m.err != nil || m.at == len(m.bytes) {
			p.receives.first = m.next
			x.over++
		}
	}
	return moved
}

// want says in this rank's receipt that it waits for a message, or reads it, that begins in part n.
func (x *exchange) want(p *pair, m *message, n uint64) {
	if p.said < 2*n-1 {
		// A reader that finds this word finds the receipts before it, too.
		atomic.StoreUint64(&p.mine.wanted[n%wants], m.call)
		x.receipt(p, 2*n-1)
	}
}

func (x *exchange) receipt(p *pair, n uint64) {
	p.said = n
	x.signal(p, p.mine.number(), n)
}

// say puts into this rank's receipt whether the message that begins in part n is another one.
func (p *pair) say(n uint64, m *message) {
	bits := p.differs &^ (1 << (n % 64))
	if m.err != nil {
		bits |= 1 << (n % 64)
		atomic.StoreUint64(&p.mine.wanted[n%wants], m.call)
	}
	if bits != p.differs {
		p.differs = bits
		p.mine.differs.Store(bits)
	}
}

// read moves what a part has.
func (x *exchange) read(p *pair, m *message, line *part) bool {
	n := len(m.bytes)
	if n <= inPart {
		m.at = copy(m.bytes, line.data[:])
		return true
	}
	at := *line.place()
	x.stream = n >= enginehost.StreamBytes
	switch {
	case at.window != 0:
		i, _ := slices.BinarySearch(x.Live, p.peer)
		src, err := x.peer(i, enginehost.OperandRef{Window: at.window, Offset: at.offset}, n)
		if err != nil {
			x.err = err
			return false
		}
		x.copy(m.bytes, src)
		m.at = n
	case at.offset != announced:
		if m.at == 0 && n > x.chunkBytes { // more may come
			x.want(p, m, m.first)
		}
		n = min(n-m.at, x.chunkBytes)
		x.copy(m.bytes[m.at:][:n], x.piece(x.OwnBytes(p.peer), at.offset, n))
		m.at += n
	}
	return true
}

// differ is the error of a message that is another one for the peer, or that the peer refuses.
func (x *exchange) differ(p *pair, m *message, call uint64) error {
	if call&enginehost.RefusedCall != 0 {
		return enginehost.TakeRefusal(p.peer, x.name, uint32(call&^enginehost.RefusedCall), x.text(x.OwnBytes(p.peer)))
	}
	return &weft.PeerError{Rank: p.peer, Op: x.name, Err: fmt.Errorf("%w: %s", weft.ErrMismatch, m.Differs(call))}
}

package port

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weftgo/weft/fabric"
)

// Card is what peers need to connect: the cards of all rails. A bootstrap carries it to them.
func (x *Proxy) Card() []byte {
	var cards [][]byte
	for _, d := range x.rails {
		cards = append(cards, d.Card())
	}
	return join(cards)
}

// join makes one card of one a rail.
func join(cards [][]byte) (card []byte) {
	for _, c := range cards {
		card = binary.LittleEndian.AppendUint16(card, uint16(len(c)))
		card = append(card, c...)
	}
	return card
}

// split finds a rail's cards.
func (x *Proxy) split(card []byte) (cards [][]byte, err error) {
	for len(card) >= 2 {
		n := int(binary.LittleEndian.Uint16(card))
		if card = card[2:]; n > len(card) {
			break
		}
		cards, card = append(cards, card[:n]), card[n:]
	}
	if len(card) > 0 || len(cards) != len(x.rails) {
		return nil, fmt.Errorf("%w: its card is not one of %d rails: give all ranks as many domains",
			fabric.ErrMismatch, len(x.rails))
	}
	return cards, nil
}

// Peer is a rank to which channels lead.
type Peer struct {
	proxy *Proxy
	rank  int
	rails []*fabric.Peer
}

// Connect makes a rank reachable by its proxy's card. Both ranks connect before either uses a channel.
func (x *Proxy) Connect(ctx context.Context, rank int, card []byte) (*Peer, error) {
	cards, err := x.split(card)
	if err != nil {
		return nil, &PeerError{Rank: rank, Op: "connect", Err: err}
	}
	p := &Peer{proxy: x, rank: rank}
	for i, d := range x.rails {
		r, err := d.Connect(ctx, rank, cards[i])
		if err != nil {
			return nil, err
		}
		p.rails = append(p.rails, r)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, fmt.Errorf("connect: %w", fabric.ErrClosed)
	}
	if old := x.peers[rank]; old != nil {
		return old, nil
	}
	x.peers[rank] = p
	return p, nil
}

// Rank is the peer's.
func (p *Peer) Rank() int { return p.rank }

// Err is why a channel to the peer has failed, if one has, or nil. It waits for nothing.
func (p *Peer) Err() error {
	for _, l := range *p.proxy.lanes.Load() {
		if l == nil || l.peer != p {
			continue
		}
		if err := l.err(); err != nil {
			return err
		}
	}
	return nil
}

// Fail ends the channels to the peer with a cause that comes from elsewhere, as [fabric.Peer.Fail] does. The
// first cause stays.
func (p *Peer) Fail(cause error) {
	for _, r := range p.rails {
		r.Fail(cause)
	}
}

// Memory is memory of this rank that channels put from, and that peers put into.
type Memory struct {
	proxy   *Proxy
	number  int    // in the proxy's table
	serial  uint64 // no other memory of the proxy has had it
	bytes   int
	regions []*fabric.Region // one a rail
}

// Register makes memory known to all rails. The epoch goes into keys: see [fabric.Region.Renew].
func (x *Proxy) Register(memory []byte, epoch uint32) (*Memory, error) {
	if uint64(len(memory)) > 1<<offsetBits {
		return nil, invalid("register %d bytes: a trigger reaches %d: divide the memory", len(memory), uint64(1)<<offsetBits)
	}
	m := &Memory{proxy: x, bytes: len(memory)}
	for _, d := range x.rails {
		r, err := d.Register(memory, epoch)
		if err != nil {
			return nil, errors.Join(err, m.closeRegions())
		}
		m.regions = append(m.regions, r)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, errors.Join(fmt.Errorf("register: %w", fabric.ErrClosed), m.closeRegions())
	}
	x.serial++
	m.serial = x.serial
	old := *x.locals.Load()
	if m.number = slices.Index(old, nil); m.number >= 0 {
		all := slices.Clone(old)
		all[m.number] = m
		x.locals.Store(&all)
		return m, nil
	}
	if len(old) == 1<<memoryBits {
		return nil, errors.Join(invalid("register: a proxy has at most %d memories: close some", len(old)), m.closeRegions())
	}
	m.number = add(&x.locals, m)
	return m, nil
}

// Bytes is the memory's size.
func (m *Memory) Bytes() int { return m.bytes }

// Card is what peers need to put into the memory. A bootstrap carries it to them.
func (m *Memory) Card() []byte {
	var cards [][]byte
	for _, r := range m.regions {
		cards = append(cards, r.Card())
	}
	return append(binary.LittleEndian.AppendUint64(nil, m.serial), join(cards)...)
}

// cut takes the card of a memory apart.
func (x *Proxy) cut(card []byte) (serial uint64, cards [][]byte, err error) {
	if len(card) < 8 {
		return 0, nil, fmt.Errorf("%w: a memory's card of %d bytes", fabric.ErrMismatch, len(card))
	}
	cards, err = x.split(card[8:])
	return binary.LittleEndian.Uint64(card), cards, err
}

// Renew takes the keys back and makes new ones, as [fabric.Region.Renew] says.
func (m *Memory) Renew(epoch uint32) error {
	var all error
	for _, r := range m.regions {
		all = errors.Join(all, r.Renew(epoch))
	}
	return all
}

// Close takes the keys back. Puts from the memory must have been flushed.
func (m *Memory) Close() error {
	x := m.proxy
	x.mu.Lock()
	if all := slices.Clone(*x.locals.Load()); m.number < len(all) && all[m.number] == m {
		all[m.number] = nil
		x.locals.Store(&all)
	}
	x.mu.Unlock()
	return m.closeRegions()
}

// closed says whether the memory was closed.
func (m *Memory) closed() bool {
	all := *m.proxy.locals.Load()
	return all[m.number] != m
}

func (m *Memory) closeRegions() (err error) {
	for _, r := range m.regions {
		err = errors.Join(err, r.Close())
	}
	return err
}

// Remote is a peer's memory as this rank knows it.
type Remote struct {
	proxy  *Proxy
	number int // in the proxy's table
	name   name
	rank   int
	rails  []fabric.Remote
}

// name is that of a memory among those of all ranks. It stays when the memory is renewed.
type name struct {
	rank   int
	serial uint64
}

// Memory makes a peer's memory known by its card, which may be one from before it was renewed.
func (p *Peer) Memory(card []byte) (*Remote, error) {
	x := p.proxy
	x.mu.Lock()
	defer x.mu.Unlock()
	m, err := p.remote(card)
	if err != nil {
		return nil, err
	}
	if newer := x.renewed[m.name]; newer != nil {
		if m, err = p.remote(newer); err != nil {
			return nil, err
		}
	}
	all := *x.remotes.Load()
	for _, known := range all { // so that it may be asked for again and again
		if known != nil && known.name == m.name {
			return known, nil
		}
	}
	if m.number = slices.Index(all, nil); m.number >= 0 {
		all = slices.Clone(all)
		all[m.number] = m
		x.remotes.Store(&all)
		return m, nil
	}
	if len(all) == 1<<memoryBits {
		return nil, invalid("memory of rank %d: a proxy knows at most %d memories of peers", p.rank, len(all))
	}
	m.number = add(&x.remotes, m)
	return m, nil
}

// remote is a peer's memory that has no number yet.
func (p *Peer) remote(card []byte) (*Remote, error) {
	serial, cards, err := p.proxy.cut(card)
	if err != nil {
		return nil, &PeerError{Rank: p.rank, Op: "region", Err: err}
	}
	m := &Remote{proxy: p.proxy, name: name{p.rank, serial}, rank: p.rank}
	for i, r := range p.rails {
		remote, err := r.Region(cards[i])
		if err != nil {
			return nil, err
		}
		m.rails = append(m.rails, remote)
	}
	return m, nil
}

// Close forgets the memory, whose channels were closed before.
func (m *Remote) Close() {
	x := m.proxy
	x.mu.Lock()
	defer x.mu.Unlock()
	all := slices.Clone(*x.remotes.Load())
	if all[m.number] != nil && all[m.number].name == m.name { // of a renewed memory there is a newer one
		all[m.number] = nil
		x.remotes.Store(&all)
	}
}

// Bytes is the memory's size.
func (m *Remote) Bytes() int { return m.rails[0].Bytes() }

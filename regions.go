package weft

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/weftgo/weft/fabric"
)

// Writes of a rank that is gone may still be on their way when the others go on, and memory of windows is used again
// and again. SetMask therefore ends the connections to such ranks and gives all regions new keys, of a new epoch:
//
//  1. Ranks tell each other whether one has lost a rank since, or has missed an earlier time. If none has, that is all.
//  2. What they themselves have on its way to each other lands first, by the old keys.
//  3. Each registers the memory anew, at another address, and they tell each other the cards. What still lands at the
//     former address, as it may where the provider writes by a processor, lands where nobody reads.
//
// Objects with domains of their own take part: see [Renewable].
//
// A rank that was left out alive and is taken back loses its connections if it had something on its way meanwhile.

// renewRegions is that. It is collective over the ranks that are not masked.
func (c *Comm) renewRegions(ctx context.Context, op string) error {
	if !c.spans() {
		return nil
	}
	const failed = 1 << 63
	count := c.reach.renewals
	if c.reach.begun {
		count |= failed
	}
	note := binary.LittleEndian.AppendUint64(nil, count)
	note = append(note, c.goneFar()...)
	notes, err := c.verifyWith(ctx, op, "gone", note, nil)
	if err != nil {
		return err
	}
	gone, last, missed := make([]byte, len(note)-8), uint64(0), false
	for r, n := range notes {
		if c.Masked(r) {
			continue
		}
		if len(n) != len(note) {
			return &PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: %d bytes of regions", ErrMismatch, len(n))}
		}
		theirs := binary.LittleEndian.Uint64(n)
		last, missed = max(last, theirs&^failed), missed || theirs&failed != 0 || theirs != count
		for i, b := range n[8:] {
			gone[i] |= b
		}
	}
	if !missed && !slices.ContainsFunc(gone, func(b byte) bool { return b != 0 }) {
		return nil
	}
	c.reach.begun = true
	others := c.reach.renewables()
	if err := c.verifySame(ctx, op, "settled", c.settleFar(ctx, op, others)); err != nil {
		return err
	}
	err = c.cutOff(gone)
	windows := slices.Clone(c.windows.open())
	slices.SortFunc(windows, func(a, b *Window) int { return cmp.Compare(a.id, b.id) })
	for _, w := range windows {
		if w.region != nil && err == nil {
			if err = w.revoke(true); err == nil {
				err = c.grant(c.reach.domain, w)
			}
		}
	}
	var cards []namedCard
	for _, w := range windows {
		if w.region != nil {
			cards = append(cards, namedCard{w.id, w.region.Card()})
		}
	}
	for number, o := range others {
		if err != nil {
			break
		}
		var renewed [][]byte
		renewed, err = o.Renew(func(r int) bool { return gone[r/8]&(1<<(r%8)) != 0 }, uint32(c.control.Generation()))
		for _, card := range renewed {
			cards = append(cards, namedCard{otherCard | number, card})
		}
	}
	if err := c.tellCards(ctx, op, cards, err); err != nil {
		return err // the others are held until SetMask succeeds: they may not have all keys
	}
	for _, o := range others {
		o.Resume()
	}
	c.reach.renewals, c.reach.begun = last+1, false
	return nil
}

// namedCard is a card of a window's region, by the window's number, or of another object's.
type namedCard struct {
	id   uint64
	card []byte
}

// otherCard marks the number of an object that is no window.
const otherCard = 1 << 63

func (r *reach) renewables() map[uint64]Renewable {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.others)
}

// goneFar are the masked ranks of other hosts, as bits, that this one cannot write to any more and is not cut off from.
func (c *Comm) goneFar() []byte {
	gone := make([]byte, (c.size+7)/8)
	r := &c.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, p := range r.peers {
		if p != nil && c.Masked(rank) && !r.cut.Has(rank) && p.Err() != nil {
			gone[rank/8] |= 1 << (rank % 8)
		}
	}
	for rank := range c.size {
		if !c.Masked(rank) {
			continue
		}
		for _, o := range r.others {
			if connected, err := o.Reaches(rank); connected && (err != nil || r.lost[rank] != nil) {
				gone[rank/8] |= 1 << (rank % 8)
			}
		}
	}
	return gone
}

// far are the peers that are not masked.
func (c *Comm) far() (peers []*fabric.Peer) {
	r := &c.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, p := range r.peers {
		if p != nil && !c.Masked(rank) {
			peers = append(peers, p)
		}
	}
	return peers
}

// settleFar waits until what this rank has written to others has landed.
func (c *Comm) settleFar(ctx context.Context, op string, others map[uint64]Renewable) error {
	ctx, cancel := c.bounded(ctx, op)
	defer cancel()
	for _, p := range c.far() {
		if err := p.Settle(ctx); err != nil {
			return cmp.Or(c.begin(op), fmt.Errorf("%s: %w", op, err))
		}
	}
	for _, o := range others {
		if err := o.Settle(ctx, c.Masked); err != nil {
			return cmp.Or(c.begin(op), fmt.Errorf("%s: %w", op, err))
		}
	}
	return nil
}

// cutOff ends the connections to ranks that are gone.
func (c *Comm) cutOff(gone []byte) error {
	r := &c.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, p := range r.peers {
		if p == nil || gone[rank/8]&(1<<(rank%8)) == 0 || r.cut.Has(rank) {
			continue
		}
		if err := p.Close(); err != nil {
			return fmt.Errorf("cut off rank %d: %w", rank, err)
		}
		r.cut = r.cut.With(rank)
	}
	return nil
}

// tellCards gives each rank the cards of all others, as many at a time as a note holds.
func (c *Comm) tellCards(ctx context.Context, op string, cards []namedCard, own error) error {
	var note []byte
	for {
		note = append(note[:0], 0)
		for len(cards) > 0 {
			card := cards[0].card
			if len(note)+10+len(card) > noteSize/2 {
				note[0] = 1 // more follow
				break
			}
			note = binary.LittleEndian.AppendUint64(note, cards[0].id)
			note = binary.LittleEndian.AppendUint16(note, uint16(len(card)))
			note = append(note, card...)
			cards = cards[1:]
		}
		notes, err := c.verifyWith(ctx, op, "cards", note, own)
		if err != nil {
			return err
		}
		more := false
		for rank, n := range notes {
			if len(n) == 0 {
				continue
			}
			more = more || n[0] == 1
			if err := c.takeCards(op, rank, n[1:]); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// takeCards takes note of the regions of another rank.
func (c *Comm) takeCards(op string, rank int, cards []byte) error {
	for len(cards) >= 10 {
		id, n := binary.LittleEndian.Uint64(cards), int(binary.LittleEndian.Uint16(cards[8:]))
		if len(cards) < 10+n {
			break
		}
		if err := c.takeCard(rank, namedCard{id, cards[10:][:n]}); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		cards = cards[10+n:]
	}
	if len(cards) > 0 {
		return &PeerError{Rank: rank, Op: op, Err: fmt.Errorf("%w: %d bytes of a card", ErrMismatch, len(cards))}
	}
	return nil
}

func (c *Comm) takeCard(rank int, n namedCard) error {
	if n.id&otherCard != 0 {
		if o := c.reach.renewables()[n.id&^otherCard]; o != nil && rank != c.rank {
			return o.Take(rank, n.card)
		}
		return nil // it was closed here
	}
	p := Operations{c}.FabricPeer(rank)
	if p == nil {
		return nil // a rank of this host
	}
	remote, err := p.Region(n.card)
	if err != nil {
		return err
	}
	for _, w := range c.windows.open() {
		if w.id == n.id {
			w.remotes[rank] = remote
		}
	}
	return nil
}

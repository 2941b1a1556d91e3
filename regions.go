package weft

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/rankset"
)

// What a rank that is left out has on its way may come when the others go on, and memory of windows is used again and
// again. Once SetMask returns, nothing that a masked rank of another host writes, then or before, lands in memory of
// windows or of objects with domains of their own ([Renewable]). For that SetMask gives all regions new keys, of a new
// epoch, where a rank is masked to which one is connected, be it alive or not:
//
//  1. Ranks tell each other whether one has lost a masked rank, or is connected to one that has the present keys, or
//     has missed an earlier time, or keeps memory of windows that were closed after a failure, when all ranks are back.
//     If none does, that is all.
//  2. What they themselves have on its way to each other lands first, by the old keys.
//  3. Each registers the memory anew, at another address, and they tell each other the cards. What still lands at the
//     former address, as it may where the provider writes by a processor, lands where nobody reads. If no rank is
//     masked or lost, nothing lands there any more, and what was kept for that is freed: see [Window.free].
//
// Connections to masked ranks that are lost end before that. So do all to masked ranks where memory cannot move to
// another address, and a processor may place what comes: those of a Renewable, and those of a rank that has a window of
// a GPU of which there is no alias.
//
// A rank that was left out alive keeps its other connections and is taken back with new keys, if it wrote nothing
// meanwhile. A write by an old key makes the provider end the connection. Then the ranks say so in SetMask: it is lost.
// What the others had on its way to it comes from memory that does not move, and lands when it wakes: see [Comm.grant].

// A regionNote is what a rank tells the others of its keys and connections.
type regionNote struct {
	renewed uint64  // the generation that gave out its keys; 0: none, they are those that it began with
	begun   bool    // a renewal here has not ended
	kept    bool    // no rank is masked, and memory is kept that a renewal gives back
	gone    RankSet // see goneFar
	late    RankSet
	lost    RankSet // see lostFar
	apart   RankSet // see reach
}

const (
	begunBit = 1 << 63
	keptBit  = 1 << 62
)

func (n *regionNote) encode(ranks int) []byte {
	first := n.renewed
	if n.begun {
		first |= begunBit
	}
	if n.kept {
		first |= keptBit
	}
	note := binary.LittleEndian.AppendUint64(nil, first)
	for _, s := range []RankSet{n.gone, n.late, n.lost, n.apart} {
		note = appendSet(note, s, ranks)
	}
	return note
}

func appendSet(note []byte, s RankSet, ranks int) []byte {
	words := s.Words()
	for _, w := range words[:(ranks+63)/64] {
		note = binary.LittleEndian.AppendUint64(note, w)
	}
	return note
}

// setsOf reads sets of ranks off a note that has nothing else.
func setsOf(note []byte, ranks int, sets ...*RankSet) error {
	n := (ranks + 63) / 64
	if len(note) != 8*n*len(sets) {
		return fmt.Errorf("%w: %d bytes of regions", ErrMismatch, len(note))
	}
	for _, s := range sets {
		var words [RankSetWords]uint64
		for i := range n {
			words[i] = binary.LittleEndian.Uint64(note)
			note = note[8:]
		}
		*s = rankset.FromWords(words)
	}
	return nil
}

func (n *regionNote) decode(note []byte, ranks int) error {
	if len(note) < 8 {
		return fmt.Errorf("%w: %d bytes of regions", ErrMismatch, len(note))
	}
	first := binary.LittleEndian.Uint64(note)
	n.renewed, n.begun, n.kept = first&^(begunBit|keptBit), first&begunBit != 0, first&keptBit != 0
	return setsOf(note[8:], ranks, &n.gone, &n.late, &n.lost, &n.apart)
}

// unite takes note of another rank's, which comes first or not.
func (n *regionNote) unite(o *regionNote, first bool) {
	n.begun = n.begun || o.begun || !first && n.renewed != o.renewed
	n.renewed, n.kept = o.renewed, n.kept || o.kept
	n.gone, n.late, n.apart = n.gone.Union(o.gone), n.late.Union(o.late), n.apart.Union(o.apart)
}

// tellRegions gives each rank the notes of all: what is true of any of them, and by rank whom it has lost. begun then
// says that keys differ, too.
func (c *Comm) tellRegions(ctx context.Context, op string) (all regionNote, lost []RankSet, err error) {
	own := regionNote{renewed: c.reach.renewed, begun: c.reach.begun, lost: c.lostFar(), apart: c.reach.apart}
	own.gone, own.late = c.goneFar()
	own.kept = c.Mask().Empty() && c.reach.keeps()
	notes, err := c.verifyWith(ctx, op, "gone", own.encode(c.size), nil)
	if err != nil {
		return all, nil, err
	}
	lost = make([]RankSet, c.size)
	first := true
	for r, n := range notes {
		if c.Masked(r) {
			continue
		}
		var theirs regionNote
		if err := theirs.decode(n, c.size); err != nil {
			return all, nil, &PeerError{Rank: r, Op: op, Err: err}
		}
		all.unite(&theirs, first)
		lost[r], first = theirs.lost, false
	}
	return all, lost, nil
}

// tellLost gives each rank the others' lost ranks, once what they have on its way to each other has landed. own is why
// it has not.
func (c *Comm) tellLost(ctx context.Context, op string, own error) (lost []RankSet, err error) {
	notes, err := c.verifyWith(ctx, op, "settled", appendSet(nil, c.lostFar(), c.size), own)
	if err != nil {
		return nil, err
	}
	lost = make([]RankSet, c.size)
	for r, n := range notes {
		if c.Masked(r) {
			continue
		}
		if err := setsOf(n, c.size, &lost[r]); err != nil {
			return nil, &PeerError{Rank: r, Op: op, Err: err}
		}
	}
	return lost, nil
}

// renewRegions is that. It is collective over the ranks that are not masked.
func (c *Comm) renewRegions(ctx context.Context, op string) error {
	if !c.spans() {
		return nil
	}
	mask := c.Mask()
	c.reach.apart = c.reach.apart.Union(mask)
	all, lost, err := c.tellRegions(ctx, op)
	if err != nil {
		return err
	}
	free := all.kept && !slices.ContainsFunc(lost, func(s RankSet) bool { return !s.Empty() })
	if !all.begun && all.gone.Empty() && all.late.Empty() && !free {
		c.reach.apart = mask
		return nil
	}
	c.reach.begun = true
	back := all.apart.Minus(mask)
	if err := c.parted(op, lost, back); err != nil {
		return err
	}
	ends := func(r int) bool { // of connections of Renewables
		return all.gone.Has(r) || all.late.Has(r) || back.Has(r) || back.Has(c.rank)
	}
	others := c.reach.renewables()
	err = c.settleFar(ctx, op, others, ends)
	if lost, err = c.tellLost(ctx, op, err); err == nil {
		err = c.parted(op, lost, back)
	}
	if err != nil {
		return err
	}
	cards, err := c.renewKeys(all.gone, ends, others)
	if err := c.tellCards(ctx, op, cards, err); err != nil {
		return err // the others are held until SetMask succeeds: they may not have all keys
	}
	for _, o := range others {
		o.Resume()
	}
	c.reach.renewed, c.reach.begun = c.control.Generation(), false
	c.reach.void, c.reach.apart = mask, mask
	return nil
}

// renewKeys gives this rank's regions new keys, and returns their cards.
func (c *Comm) renewKeys(gone RankSet, ends func(int) bool, others map[uint64]Renewable,
) (cards []namedCard, err error) {
	if err := c.cutOff(gone); err != nil {
		return nil, err
	}
	if !c.reach.unsettled(c.Masked) {
		if err := c.reach.settle(c.control.Generation()); err != nil {
			return nil, err
		}
	}
	windows := slices.Clone(c.windows.open())
	slices.SortFunc(windows, func(a, b *Window) int { return cmp.Compare(a.id, b.id) })
	for _, w := range windows {
		card, err := w.renew()
		if err != nil {
			return nil, err
		}
		if card != nil {
			cards = append(cards, namedCard{w.id, card})
		}
	}
	for number, o := range others {
		renewed, err := o.Renew(ends, uint32(c.control.Generation()))
		if err != nil {
			return nil, err
		}
		for _, card := range renewed {
			cards = append(cards, namedCard{otherCard | number, card})
		}
	}
	return cards, nil
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

// goneFar are the masked ranks of other hosts of which something may come yet: those to which this one's connections
// have to end, and those that only have keys.
func (c *Comm) goneFar() (gone, late RankSet) {
	stays := slices.ContainsFunc(c.windows.open(), (*Window).stays) // memory where what is on its way might land
	r := &c.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	stays = stays && !r.strict()
	mask := c.Mask()
	for rank := range mask.All() {
		if r.peers != nil && r.peers[rank] != nil && !r.cut.Has(rank) {
			switch {
			case r.peers[rank].Err() != nil || stays && !r.void.Has(rank):
				gone = gone.With(rank)
			case !r.void.Has(rank):
				late = late.With(rank)
			}
		}
		for _, o := range r.others {
			if connected, err := o.Reaches(rank); connected && (err != nil || r.lost[rank] != nil) {
				gone = gone.With(rank)
			} else if connected {
				late = late.With(rank)
			}
		}
	}
	return gone, late
}

// lostFar are the ranks that go on to which this one has lost its connection.
func (c *Comm) lostFar() (lost RankSet) {
	for _, p := range c.far() {
		if p.Err() != nil {
			lost = lost.With(p.Rank())
		}
	}
	return lost
}

// parted is the error of all ranks where some that go on have lost each other. It names one that is taken back, and of
// several the one that most have lost.
func (c *Comm) parted(op string, lost []RankSet, back RankSet) error {
	pairs, worst := make([]int, c.size), -1
	for a := range lost {
		for b := range lost[a].All() {
			pairs[a]++
			pairs[b]++
		}
	}
	for r, n := range pairs {
		if n > 0 && (worst < 0 || back.Has(r) && !back.Has(worst) || back.Has(r) == back.Has(worst) && n >= pairs[worst]) {
			worst = r
		}
	}
	if worst < 0 {
		return nil
	}
	why := "its connection is lost"
	if back.Has(worst) {
		why = "its connection has ended since it was left out"
	}
	err := &PeerError{Rank: worst, Op: op, Err: fmt.Errorf("%w: %s; go on without it, or join anew", ErrDied, why)}
	Operations{c}.FailHere(err) // all ranks find it in the same notes
	return err
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

// settleFar waits until what this rank has written to others has landed, but for those that it loses, and for those to
// which the others' connections end.
func (c *Comm) settleFar(ctx context.Context, op string, others map[uint64]Renewable, ends func(int) bool) error {
	ctx, cancel := c.bounded(ctx, op)
	defer cancel()
	for _, p := range c.far() {
		if err := p.Settle(ctx); err != nil && p.Err() == nil {
			return cmp.Or(c.begin(op), fmt.Errorf("%s: %w", op, err))
		}
	}
	for _, o := range others {
		if err := o.Settle(ctx, func(r int) bool { return c.Masked(r) || ends(r) }); err != nil {
			return cmp.Or(c.begin(op), fmt.Errorf("%s: %w", op, err))
		}
	}
	return nil
}

// unsettled says whether something may still come, or leave, when what goes to ranks that are not masked has landed.
func (r *reach) unsettled(masked func(int) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, p := range r.peers {
		if p != nil && (masked(rank) || p.Err() != nil) {
			return true
		}
	}
	return false
}

// cutOff ends the connections to ranks that are gone.
func (c *Comm) cutOff(gone RankSet) error {
	r := &c.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, p := range r.peers {
		if p == nil || !gone.Has(rank) || r.cut.Has(rank) {
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
			w.takeRemote(rank, remote)
		}
	}
	return nil
}

func (w *Window) takeRemote(rank int, remote fabric.Remote) {
	w.grants.Lock()
	defer w.grants.Unlock()
	if !w.closed {
		w.remotes[rank] = remote
	}
}

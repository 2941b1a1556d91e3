package port

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weftgo/weft/fabric"
)

// What a rank that is gone still has on its way must not land in memory that is used anew. Hence the other ranks give
// their memories new keys, together: each calls Settle; when all have, Renew; then Take with the cards of all others'
// memories, and Resume. Triggers that were pushed meanwhile are posted by the new keys.

// Reaches says whether the proxy is connected to a rank, and why nothing goes there any more.
func (x *Proxy) Reaches(rank int) (connected bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.peers[rank]
	if p == nil {
		return false, nil
	}
	for _, r := range p.rails {
		err = errors.Join(err, r.Err())
	}
	return true, err
}

// Settle posts nothing from now on, and returns when what was posted has landed. It waits for no peer that is lost, and
// for none that is left out: that one may be silent.
func (x *Proxy) Settle(ctx context.Context, out func(rank int) bool) error {
	x.call(func() { x.held = true })
	x.mu.Lock()
	peers := slices.Collect(maps.Values(x.peers))
	x.mu.Unlock()
	for _, p := range peers {
		for _, r := range p.rails {
			if out(p.rank) || r.Err() != nil {
				continue
			}
			if err := r.Settle(ctx); err != nil && r.Err() == nil {
				return err
			}
		}
	}
	return nil
}

// errLeftOut is why nothing goes to a rank any more that SetMask has left out. It could not move the memories away from
// what such a rank has on its way, so it ended the connection, though the rank may be alive.
var errLeftOut = fmt.Errorf("%w: SetMask has left the rank out: make the service anew", fabric.ErrClosed)

// Renew ends the connections to ranks that are gone, and gives all memories new keys. It returns their cards.
func (x *Proxy) Renew(gone func(rank int) bool, epoch uint32) (cards [][]byte, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.renewed) // who still has a memory brings a card of it anew
	for rank, p := range x.peers {
		if !gone(rank) {
			continue
		}
		for _, r := range p.rails {
			r.Fail(errLeftOut) // unless it has failed already
			err = errors.Join(err, r.Close())
		}
		delete(x.peers, rank)
	}
	for _, m := range *x.locals.Load() {
		if m == nil {
			continue
		}
		if again := m.Renew(epoch); again == nil {
			cards = append(cards, m.Card())
		} else if !errors.Is(again, fabric.ErrClosed) { // it is being closed
			err = errors.Join(err, again)
		}
	}
	return cards, err
}

// Take takes note of a peer's memory that was renewed.
func (x *Proxy) Take(rank int, card []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	serial, _, err := x.cut(card)
	if err != nil {
		return &PeerError{Rank: rank, Op: "region", Err: err}
	}
	of := name{rank, serial}
	x.renewed[of] = slices.Clone(card)
	p, all := x.peers[rank], *x.remotes.Load()
	at := slices.IndexFunc(all, func(m *Remote) bool { return m != nil && m.name == of })
	if p == nil || at < 0 {
		return nil
	}
	m, err := p.remote(card)
	if err != nil {
		return err
	}
	m.number = at
	all = slices.Clone(all)
	all[at] = m
	x.remotes.Store(&all)
	return nil
}

// Resume goes on to post.
func (x *Proxy) Resume() { x.call(func() { x.held = false }) }

package port

import (
	"testing"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// TestRenewedCards: a card from before is as good as the new one, for as long as its memory is there. Of memories that
// are closed nothing is kept.
func TestRenewedCards(t *testing.T) {
	network := fabrictest.New(fabrictest.TCP(), 1)
	var proxies [2]*Proxy
	for rank := range proxies {
		d, err := network.Open(t.Context(), fabric.Options{Rank: rank, Size: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if proxies[rank], err = New(Options{}, d); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { proxies[rank].Close() })
	}
	here, there := proxies[0], proxies[1]
	peer, err := here.Connect(t.Context(), 1, there.Card())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := there.Connect(t.Context(), 0, here.Card()); err != nil {
		t.Fatal(err)
	}
	none := func(int) bool { return false }
	stays, err := there.Register(make([]byte, 64), 0)
	if err != nil {
		t.Fatal(err)
	}
	first := stays.Card()
	for epoch := range uint32(20) {
		goes, err := there.Register(make([]byte, 64), epoch)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := here.Renew(none, epoch); err != nil {
			t.Fatal(err)
		}
		cards, err := there.Renew(none, epoch)
		if err != nil {
			t.Fatal(err)
		}
		for _, card := range cards {
			if err := here.Take(1, card); err != nil {
				t.Fatal(err)
			}
		}
		if err := goes.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(here.renewed); n > 2 {
		t.Errorf("%d cards are kept, of one memory that is there and one that was", n)
	}
	m, err := peer.Memory(first)
	if err != nil {
		t.Fatal(err)
	}
	want, err := peer.remote(stays.Card())
	if err != nil {
		t.Fatal(err)
	}
	if m.rails[0] != want.rails[0] {
		t.Errorf("by the first card %+v, by the last %+v", m.rails[0], want.rails[0])
	}
}

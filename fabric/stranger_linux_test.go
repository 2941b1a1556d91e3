package fabric_test

import (
	"errors"
	"testing"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// TestStrangers has endpoints of libfabric write to domains that they were not told of. Without a key their writes land
// nowhere. With one, which a peer of another job might have seen, what they bring to the queue is not believed.
func TestStrangers(t *testing.T) {
	for _, name := range []string{"tcp", "tcp;ofi_rxm"} {
		t.Run(name, func(t *testing.T) {
			b := backend{options: fabric.Options{Provider: name, Source: "127.0.0.1"}}
			all := b.ranks(t, 2, 4096)
			for _, r := range all {
				s := fabrictest.Stranger{Provider: name, Port: r.Address()}
				if landed := s.Guess(t.Context()); len(landed) > 0 {
					t.Errorf("writes with the keys %x landed", landed)
				}
				for _, data := range []uint64{0, 3<<30 | 5, 1 << 30, 2<<30 | 1} { // a signal, a count, requests
					if err := s.Write(t.Context(), r.BoardKey(), r.Unread(), data); err != nil {
						t.Errorf("with the key: %v", err)
					}
				}
			}
			for i := range 20 {
				each(t, all, func(r *rank) error {
					p := r.peers[1-r.index]
					return errors.Join(p.Write(t.Context(), r.remotes[1-r.index], i, r.region, i, 8),
						p.Signal(t.Context(), 0), p.Await(t.Context(), 0, uint64(i+1)), p.Flush(t.Context()))
				})
			}
			for _, r := range all {
				if n := r.peers[1-r.index].Signalled(0); n != 20 {
					t.Errorf("rank %d has %d signals of 20", r.index, n)
				}
			}
		})
	}
}

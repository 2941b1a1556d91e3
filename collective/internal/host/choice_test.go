package host

import (
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// TestChoice walks the tuning table: every algorithm is chosen for something, and only for what it
// supports.
func TestChoice(t *testing.T) {
	chosen := map[string]bool{}
	for kind := range spec.Collectives {
		for _, ranks := range []int{1, 2, 3, 4, 8, 64} {
			for _, n := range []int{0, 1, 8, 4096, 1 << 15, 1 << 20, 1 << 30} {
				if kind == spec.Barrier && n > 0 {
					continue
				}
				for w := range spec.Windows(8) {
					q := spec.Request{
						Collective: kind, DType: weft.Uint8, Count: n, Bytes: n, Ranks: ranks,
						Slot: scratchBytes / enginehost.RingShare, Windows: w, Sent: n,
					}
					f := atOnce(&q, nil)
					if f == nil {
						f = afterExchange(&q, nil)
					}
					if f == nil {
						t.Errorf("nothing is chosen for %+v", q)
						continue
					}
					name := f.names[kind]
					if name == "" || !f.supports(&q) {
						t.Errorf("%q is chosen for %+v", name, q)
					}
					chosen[name] = true
				}
			}
		}
	}
	for _, a := range Algorithms() {
		if !chosen[a.Name] {
			t.Errorf("%s is never chosen", a.Name)
		}
	}
}

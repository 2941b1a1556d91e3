package launch

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/verify"
	"github.com/weftgo/weft/plan/spec"
)

// Across refuses a plan of which ranks on different hosts would share memory, or that counts on what engines do not
// promise between hosts. Host says on which host a rank is; the plan was verified.
func (p *Plan) Across(host func(rank int) int) error {
	for r := range p.File.Ranks {
		rank := &p.File.Ranks[r]
		for id, peer := range rank.Peers(spec.Memory) {
			if host(peer) != host(r) {
				return weft.Unsupportedf("%s: memory channel %d of rank %d leads to rank %d, which is on another host; make it a "+
					"port channel, or start the two on one host", p.Name, id, r, peer)
			}
		}
		for id := range rank.Switches {
			for _, member := range rank.Switches[id].Ranks {
				if host(member) != host(r) {
					return weft.Unsupportedf("%s: switch channel %d of rank %d has rank %d, which is on another host; make it port "+
						"channels, or start the two on one host", p.Name, id, r, member)
				}
			}
		}
	}
	far := false
	for r := range p.File.Ranks {
		far = far || host(r) != host(0)
	}
	if !far {
		return nil
	}
	for s, op := range p.File.All() {
		rank := &p.File.Ranks[s.Rank]
		block := &rank.Blocks[s.Block]
		if op.Via == spec.Memory {
			for _, place := range slices.Concat(op.Src, op.Dst) {
				if place.At != spec.RemoteBuffer {
					continue
				}
				if q := rank.Remotes[block.Remote(op.Via, place.ID)].Rank; host(q) != host(s.Rank) {
					return weft.Unsupportedf("%s reaches the memory of rank %d, which is on another host; push it through a port "+
						"channel, or start the two on one host", p.At(s), q)
				}
			}
		}
		if op.Via == spec.Port && op.Kind.Packets() && s.Inner >= 0 {
			return weft.Unsupportedf("%s pushes packets in a pipeline, whose windows are not counted between hosts; push them "+
				"outside of it", p.At(s))
		}
	}
	for _, f := range p.Verdict.Findings {
		if f.Class == verify.Balance {
			return fmt.Errorf("%s: %w: the counters of its channels end elsewhere than they began, and ranks of several hosts "+
				"share them among plans: %s", p.Name, weft.ErrUnsupported, f.Text)
		}
	}
	return nil
}

package optimizer

import (
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// joints is every operation that the one before it could take in.
func joints(f *spec.File) (all []spec.Site) {
	joined(f, func(at spec.Site) bool {
		all = append(all, at)
		return true
	})
	return all
}

// joined is a plan whose operations take in the next where they can and may: from left to right, each as many as it
// can.
func joined(f *spec.File, may func(next spec.Site) bool) *spec.File {
	fold := func(ops []spec.Op, at func(i int) spec.Site) (all []spec.Op) {
		for i, op := range ops {
			if n := len(all); n > 0 {
				site := at(i)
				one, ok := lowering.Join(f, site.Rank, site.Block, all[n-1], op)
				if ok && may(site) {
					all[n-1] = one
					continue
				}
			}
			all = append(all, op)
		}
		return all
	}
	to := edited(f, func(_ spec.Site, op spec.Op) []spec.Op { return []spec.Op{op} })
	for r := range to.Ranks {
		for b := range to.Ranks[r].Blocks {
			block := &to.Ranks[r].Blocks[b]
			for i := range block.Ops {
				block.Ops[i].Ops = fold(block.Ops[i].Ops, func(k int) spec.Site {
					return spec.Site{Rank: r, Block: b, Op: i, Inner: k}
				})
			}
			block.Ops = fold(block.Ops, func(i int) spec.Site { return spec.Site{Rank: r, Block: b, Op: i, Inner: -1} })
		}
	}
	return to
}

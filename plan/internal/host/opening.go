package host

import "github.com/weftgo/weft/plan/spec"

// openings is how many operations at the beginning of each block of a plan need not run: those by which blocks tell
// each other that they have begun, and nothing else. The round that opens a launch says the same of all ranks.
//
// Of each channel, in each direction, as many signals as waits are left out, so those that remain meet as they are
// meant to. All ranks come to the same numbers.
func openings(f *spec.File) [][]int {
	all := make([][]int, len(f.Ranks))
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			n := 0
			for _, op := range f.Ranks[r].Blocks[b].Ops {
				if !tells(&op) {
					break
				}
				n++
			}
			all[r] = append(all[r], n)
		}
	}
	for shorten(f, all) {
	}
	return all
}

// tells says whether an operation does nothing but tell another rank, or hear from it.
func tells(op *spec.Op) bool {
	switch op.Kind {
	case spec.Nop, spec.Signal, spec.Wait, spec.RelaxedSignal, spec.RelaxedWait:
		return true
	}
	return false
}

// direction is one of a channel: the k-th of a type from one rank to another.
type direction struct {
	via         spec.ChannelType
	from, to, k int
}

// shorten leaves in the channels of which signals and waits do not agree, and says whether there were any.
func shorten(f *spec.File, all [][]int) (any bool) {
	surplus := make(map[direction]int)
	each := func(do func(d direction, signals int, n *int, at int)) {
		for r := range f.Ranks {
			for b := range f.Ranks[r].Blocks {
				block, n := &f.Ranks[r].Blocks[b], &all[r][b]
				for i := 0; i < *n; i++ {
					op := &block.Ops[i]
					for _, id := range op.Channels {
						d, signals := directionOf(f, r, op, block.Channel(op.Via, id))
						do(d, signals, n, i)
					}
				}
			}
		}
	}
	each(func(d direction, signals int, _ *int, _ int) { surplus[d] += signals })
	each(func(d direction, _ int, n *int, at int) {
		if surplus[d] != 0 && at < *n {
			*n, any = at, true
		}
	})
	return any
}

// directionOf is that of a signal, which counts as one, or of a wait, which counts as minus one.
func directionOf(f *spec.File, r int, op *spec.Op, channel int) (d direction, signals int) {
	peers := f.Ranks[r].Peers(op.Via)
	k := 0
	for _, peer := range peers[:channel] {
		if peer == peers[channel] {
			k++
		}
	}
	d = direction{op.Via, r, peers[channel], k}
	if op.Kind == spec.Signal || op.Kind == spec.RelaxedSignal {
		return d, 1
	}
	d.from, d.to = d.to, d.from
	return d, -1
}

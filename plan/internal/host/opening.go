package host

import "github.com/weftgo/weft/plan/spec"

// openings is how many operations at the beginning of each block of a plan need not run: those by which blocks tell
// each other that they have begun, and nothing else. The round that opens a launch says the same of all ranks.
//
// Of each channel, in each direction, as many signals as waits are left out, so those that remain meet as they are
// meant to. All ranks come to the same numbers.
func openings(f *spec.File) [][]int {
	return telling(f, func(r, b, i int) *spec.Op { return &f.Ranks[r].Blocks[b].Ops[i] }, func(r, b int) int {
		return len(f.Ranks[r].Blocks[b].Ops)
	})
}

// closings is the same at the end of each block, behind the openings, if every rank there hears from all others: ranks
// then tell each other once that they have left the launch. Where several blocks use one side of a channel none are
// left out, for a wait in the middle of one could take the signal at the end of another.
func closings(f *spec.File, openings [][]int) [][]int {
	ops := func(r, b int) []spec.Op { return f.Ranks[r].Blocks[b].Ops }
	all := telling(f, func(r, b, i int) *spec.Op { return &ops(r, b)[len(ops(r, b))-1-i] }, func(r, b int) int {
		return len(ops(r, b)) - openings[r][b]
	})
	if !aloneOnSides(f) || !hearAll(f, all) {
		for r := range all {
			clear(all[r])
		}
	}
	return all
}

// telling is how many operations of each block, of at most so many by a number, do nothing but tell.
func telling(f *spec.File, op func(r, b, i int) *spec.Op, most func(r, b int) int) [][]int {
	all := make([][]int, len(f.Ranks))
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			n := 0
			for n < most(r, b) && tells(op(r, b, n)) {
				n++
			}
			all[r] = append(all[r], n)
		}
	}
	for shorten(f, all, op) {
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
func shorten(f *spec.File, all [][]int, opAt func(r, b, i int) *spec.Op) (any bool) {
	surplus := make(map[direction]int)
	each := func(do func(d direction, signals int, n *int, at int)) {
		for r := range f.Ranks {
			for b := range f.Ranks[r].Blocks {
				block, n := &f.Ranks[r].Blocks[b], &all[r][b]
				for i := 0; i < *n; i++ {
					op := opAt(r, b, i)
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
func directionOf(f *spec.File, r int, op *spec.Op, channel int) (_ direction, signals int) {
	peers := f.Ranks[r].Peers(op.Via)
	k := 0
	for _, peer := range peers[:channel] {
		if peer == peers[channel] {
			k++
		}
	}
	if op.Kind == spec.Wait || op.Kind == spec.RelaxedWait {
		return direction{op.Via, peers[channel], r, k}, -1
	}
	return direction{op.Via, r, peers[channel], k}, 1
}

// aloneOnSides says whether each side of a channel is one block's.
func aloneOnSides(f *spec.File) bool {
	type side struct {
		direction
		signals int
	}
	users := make(map[side]int)
	for at, op := range f.All() {
		if pushes := op.Kind == spec.PutWithSignal || op.Kind == spec.PutWithSignalAndFlush; !tells(op) && !pushes {
			continue
		}
		for _, id := range op.Channels {
			d, signals := directionOf(f, at.Rank, op, f.Ranks[at.Rank].Blocks[at.Block].Channel(op.Via, id))
			if user, known := users[side{d, signals}]; known && user != at.Block {
				return false
			}
			users[side{d, signals}] = at.Block
		}
	}
	return true
}

// hearAll says whether every rank waits for all others in its closings.
func hearAll(f *spec.File, all [][]int) bool {
	for r := range f.Ranks {
		heard := make(map[int]bool)
		for b := range f.Ranks[r].Blocks {
			block := &f.Ranks[r].Blocks[b]
			for _, op := range block.Ops[len(block.Ops)-all[r][b]:] {
				for _, id := range op.Channels {
					if d, signals := directionOf(f, r, &op, block.Channel(op.Via, id)); signals < 0 {
						heard[d.from] = true
					}
				}
			}
		}
		if delete(heard, r); len(heard) < len(f.Ranks)-1 {
			return false
		}
	}
	return true
}

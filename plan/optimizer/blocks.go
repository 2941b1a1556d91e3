package optimizer

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// move gives operations to other blocks, on one rank or on all.
type move struct {
	kind        moveKind
	rank        int // or -1, all that have such blocks
	block, with int // with: of a join the block whose operations follow, of a split the first operation of the new block
}

type moveKind int

const (
	join   moveKind = iota // one block does what two did, one after the other
	split                  // a new block does the last operations of one
	spread                 // blocks for parts of one that touch nothing together
)

// String says what it does.
func (m move) String() string {
	on := fmt.Sprintf(" on rank %d", m.rank)
	if m.rank < 0 {
		on = ""
	}
	switch m.kind {
	case join:
		return fmt.Sprintf("block %d follows in block %d%s", m.with, m.block, on)
	case split:
		return fmt.Sprintf("block %d from operation %d on is a block of its own%s", m.block, m.with, on)
	}
	return fmt.Sprintf("parts of block %d are blocks of their own%s", m.block, on)
}

// moves is all that a plan allows.
func moves(f *spec.File) (all []move) {
	blocks := 0
	for r := range f.Ranks {
		blocks = max(blocks, len(f.Ranks[r].Blocks))
	}
	for rank := -1; rank < len(f.Ranks); rank++ {
		for b := range blocks {
			ops := 0
			for r := range f.Ranks {
				if (rank < 0 || r == rank) && b < len(f.Ranks[r].Blocks) {
					ops = max(ops, len(f.Ranks[r].Blocks[b].Ops))
				}
			}
			all = append(all, move{spread, rank, b, 0})
			for k := 1; k < ops; k++ {
				all = append(all, move{split, rank, b, k})
			}
			for other := range blocks {
				if other != b {
					all = append(all, move{join, rank, b, other})
				}
			}
		}
	}
	return all
}

// moved is a plan after a move, or nil where there is nothing to move.
func moved(f *spec.File, m move) *spec.File {
	to := *f
	to.Ranks = slices.Clone(f.Ranks)
	changed := false
	for r := range to.Ranks {
		rank := &to.Ranks[r]
		if m.rank >= 0 && m.rank != r || m.block >= len(rank.Blocks) || m.kind == join && m.with >= len(rank.Blocks) {
			continue
		}
		var blocks []spec.Block
		switch m.kind {
		case join:
			blocks = joinedBlocks(rank, m.block, m.with)
		case split:
			blocks = splitBlock(rank, m.block, m.with)
		case spread:
			blocks = spreadBlock(f, r, m.block)
		}
		if blocks != nil {
			rank.Blocks, changed = blocks, true
		}
	}
	if !changed {
		return nil
	}
	return &to
}

// joinedBlocks is the blocks of a rank when one does what another did, too. Blocks that meet at a barrier stay two.
func joinedBlocks(r *spec.Rank, first, second int) []spec.Block {
	met := barriersOf(r.Blocks[first].Ops)
	if slices.ContainsFunc(barriersOf(r.Blocks[second].Ops), func(id int) bool { return slices.Contains(met, id) }) {
		return nil
	}
	blocks := slices.Clone(r.Blocks)
	between := []spec.Op{{Kind: spec.Nop}}
	blocks[first] = block(slices.Concat(numbered(&r.Blocks[first]), between, numbered(&r.Blocks[second])))
	return slices.Delete(blocks, second, second+1)
}

func barriersOf(ops []spec.Op) (ids []int) {
	for _, op := range ops {
		if op.Kind == spec.Barrier {
			ids = append(ids, op.Barrier)
		}
		ids = append(ids, barriersOf(op.Ops)...)
	}
	return ids
}

// splitBlock is the blocks of a rank when a new one does the last operations of one.
func splitBlock(r *spec.Rank, b, at int) []spec.Block {
	ops := numbered(&r.Blocks[b])
	if at >= len(ops) {
		return nil
	}
	blocks := slices.Clone(r.Blocks)
	blocks[b] = block(ops[:at])
	return append(blocks, block(ops[at:]))
}

// spreadBlock is the blocks of a rank when the parts of one that touch no bytes together are blocks of their own. A
// block that signals or waits is one part.
func spreadBlock(f *spec.File, rank, b int) []spec.Block {
	r := &f.Ranks[rank]
	ops := r.Blocks[b].Ops
	part := make([]int, len(ops))
	steps := program.OfRank(f, program.Shapes(f)[0], rank).Blocks[b].Steps
	byOp := make([][]*program.Step, len(ops))
	for i := range steps {
		byOp[steps[i].Site.Op] = append(byOp[steps[i].Site.Op], &steps[i])
	}
	for i, op := range ops {
		if part[i] = i; op.Kind.Syncs() && op.Kind != spec.Nop || op.Kind == spec.Pipeline || op.Via == spec.Port {
			return nil
		}
		for k := range i {
			if from, to := part[k], part[i]; from != to && meet(byOp[k], byOp[i]) {
				for j := range i + 1 {
					if part[j] == to {
						part[j] = from
					}
				}
			}
		}
	}
	all := numbered(&r.Blocks[b])
	var blocks []spec.Block
	for p := range ops {
		var mine []spec.Op
		moves := false
		for i := range all {
			if part[i] == p && all[i].Kind != spec.Nop {
				moves = true
			}
			if part[i] == p || all[i].Kind == spec.Nop {
				mine = append(mine, all[i])
			}
		}
		if moves {
			blocks = append(blocks, block(mine))
		}
	}
	if len(blocks) < 2 {
		return nil
	}
	return slices.Concat(r.Blocks[:b], blocks[:1], r.Blocks[b+1:], blocks[1:])
}

// meet says whether two operations touch the same bytes, and one writes them.
func meet(a, b []*program.Step) bool {
	for _, x := range a {
		for _, y := range b {
			if overlap(x.Dst, y.Dst) || overlap(x.Src, y.Dst) || overlap(x.Dst, y.Src) {
				return true
			}
		}
	}
	return false
}

func overlap(a, b []program.Range) bool {
	for _, x := range a {
		for _, y := range b {
			from, to := x.Bytes()
			begin, end := y.Bytes()
			if x.Memory == y.Memory && from < end && begin < to {
				return true
			}
		}
	}
	return false
}

// numbered is the operations of a block, with the rank's numbers of channels and remote buffers.
func numbered(b *spec.Block) []spec.Op { return renumbered(b.Ops, b.Channel, b.Remote) }

// block is a block of operations that have the rank's numbers.
func block(ops []spec.Op) (b spec.Block) {
	b.Ops = renumbered(ops,
		func(t spec.ChannelType, id int) int { return spec.Use(&b.Channels, t, id) },
		func(t spec.ChannelType, id int) int { return spec.Use(&b.Remotes, t, id) })
	return b
}

// renumbered is operations with other numbers of channels and of remote buffers.
func renumbered(ops []spec.Op, channel, remote func(spec.ChannelType, int) int) []spec.Op {
	places := func(of spec.Op, all []spec.Place) []spec.Place {
		all = slices.Clone(all)
		for i := range all {
			switch all[i].At {
			case spec.RemoteBuffer:
				all[i].ID = remote(of.Via, all[i].ID)
			case spec.Members:
				all[i].ID = channel(spec.Switched, all[i].ID)
			}
		}
		return all
	}
	to := slices.Clone(ops)
	for i := range to {
		op := &to[i]
		op.Channels = slices.Clone(op.Channels)
		for k := range op.Channels {
			op.Channels[k] = channel(op.Via, op.Channels[k])
		}
		op.Src, op.Dst = places(*op, op.Src), places(*op, op.Dst)
		op.Ops = renumbered(op.Ops, channel, remote)
	}
	return to
}

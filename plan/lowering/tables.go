package lowering

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// No rank has more blocks than most, and no program more instances. No buffer has more chunks than largest.
const (
	most    = 1 << 16
	largest = 1 << 40
)

// tables numbers what a rank and its blocks use, by first use.
type tables struct {
	at   int // the rank
	rank spec.Rank
	ops  [][]*op // of each block
	loop []int   // the number of the pipeline that is the last operation of each block, or -1

	barriers [][]int // the blocks that meet at each barrier
}

func (p *Program) tables(r int) (*tables, error) {
	from := &p.Ranks[r]
	for _, n := range []int{from.Input, from.Output, from.Scratch} {
		if n < 0 || n > largest {
			return nil, fmt.Errorf("plan: rank %d has %d, %d and %d chunks", r, from.Input, from.Output, from.Scratch)
		}
	}
	t := &tables{at: r, rank: spec.Rank{
		Input: from.Input, Output: from.Output, Scratch: from.Scratch,
		Semaphores: from.Semaphores,
	}}
	for _, c := range from.Channels {
		via, err := spec.ParseChannelType(c.Type)
		if err != nil {
			return nil, err
		}
		t.channels(via).Peers = append(t.channels(via).Peers, c.Peer)
	}
	for _, s := range from.Switches {
		buffer, err := spec.ParseBuffer(s.Buffer)
		if err != nil {
			return nil, err
		}
		t.rank.Switches = append(t.rank.Switches, spec.Switch{Buffer: buffer, Ranks: s.Ranks})
	}
	for i := range from.Ops {
		o := &from.Ops[i]
		if err := t.add(p, o); err != nil {
			return nil, fmt.Errorf("plan: rank %d, call %d, of block %d (%s): %w", r, i, o.Block, o.Kind, err)
		}
	}
	return t, nil
}

// channels is the rank's list of a type.
func (t *tables) channels(via spec.ChannelType) *spec.Channels {
	i := slices.IndexFunc(t.rank.Channels, func(c spec.Channels) bool { return c.Type == via })
	if i < 0 {
		i = len(t.rank.Channels)
		t.rank.Channels = append(t.rank.Channels, spec.Channels{Type: via})
	}
	return &t.rank.Channels[i]
}

// add appends a recorded operation to its block.
func (t *tables) add(p *Program, from *Op) error {
	if from.Block < 0 || from.Block >= most {
		return fmt.Errorf("no block has number %d", from.Block)
	}
	for len(t.ops) <= from.Block {
		t.rank.Blocks = append(t.rank.Blocks, spec.Block{})
		t.ops = append(t.ops, nil)
		t.loop = append(t.loop, -1)
	}
	to := new(op)
	var err error
	if to.Kind, err = spec.ParseKind(from.Kind); err != nil {
		return err
	}
	if err := t.place(to, from); err != nil {
		return err
	}
	if !to.Fits() || to.Kind == spec.Pipeline {
		return fmt.Errorf("%d sources and %d destinations are not its", len(to.Src), len(to.Dst))
	}
	if to.Reduce, err = spec.ParseReduction(from.Reduce); err != nil {
		return err
	}
	if from.Group != nil {
		to.Group = spec.Group{ID: from.Group.ID, Size: from.Group.Size}
	}
	switch {
	case to.Kind == spec.Barrier:
		to.Barrier, to.Blocks = t.barrier(from.Blocks), len(from.Blocks)
	case to.Kind.Syncs() && to.Via != spec.NoChannel:
		to.channels = newSet(to.Channels...)
	}
	to.before, to.after, to.Semaphores = from.Before, from.After, from.Semaphores
	if to.Kind != spec.Get && to.Kind != spec.SwitchReduce && to.channels == nil && to.Via != spec.Port {
		to.Channels = nil // the places say whose buffers they are
	}
	return t.append(p, from, to)
}

// append puts an operation behind the others of its block, or into the pipeline that is the last of them.
func (t *tables) append(p *Program, from *Op, o *op) error {
	b := from.Block
	if from.Loop == nil {
		t.ops[b] = append(t.ops[b], o)
		t.loop[b] = -1
		return nil
	}
	l := *from.Loop
	if l < 0 || l >= len(p.Loops) {
		return fmt.Errorf("no pipeline has number %d", l)
	}
	if t.loop[b] != l {
		loop := spec.Op{Kind: spec.Pipeline, Unit: p.Loops[l].Unit, Chunks: p.Loops[l].Chunks}
		t.ops[b] = append(t.ops[b], &op{Op: loop})
		t.loop[b] = l
	}
	last := t.ops[b][len(t.ops[b])-1]
	last.inner = append(last.inner, o)
	return nil
}

// barrier is the number of a barrier of these blocks, in this order.
func (t *tables) barrier(of []int) int {
	i := slices.IndexFunc(t.barriers, func(b []int) bool { return slices.Equal(b, of) })
	if i < 0 {
		i = len(t.barriers)
		t.barriers = append(t.barriers, of)
	}
	return i
}

// place gives an operation its places and channels, by the numbers of its block.
func (t *tables) place(to *op, from *Op) (err error) {
	if to.Via, err = spec.ParseChannelType(from.Via); err != nil {
		return err
	}
	if to.Src, err = t.places(from, to.Via, from.Src); err != nil {
		return err
	}
	if to.Dst, err = t.places(from, to.Via, from.Dst); err != nil {
		return err
	}
	block := &t.rank.Blocks[from.Block]
	for _, id := range from.Channels {
		n := len(t.rank.Peers(to.Via))
		if to.Via == spec.Switched {
			n = len(t.rank.Switches)
		}
		if id < 0 || id >= n {
			return fmt.Errorf("%v channel %d, of %d that the rank has", to.Via, id, n)
		}
		to.Channels = append(to.Channels, spec.Use(&block.Channels, to.Via, id))
	}
	if to.Via != spec.Switched {
		return nil
	}
	if len(from.Channels) != 1 {
		return fmt.Errorf("%d switches, which should be 1", len(from.Channels))
	}
	for _, all := range [][]spec.Place{to.Src, to.Dst} {
		for i := range all {
			if all[i].At == spec.Members {
				all[i].ID = to.Channels[0]
			}
		}
	}
	if to.Kind == spec.SwitchReduce && len(to.Src) > 0 {
		to.Src[0].Buffer = t.rank.Switches[from.Channels[0]].Buffer
	}
	return nil
}

// places are the places of chunks. Remote buffers get a number when they are first seen.
func (t *tables) places(from *Op, via spec.ChannelType, chunks []Chunk) (all []spec.Place, err error) {
	for _, c := range chunks {
		if c.Index < 0 || c.Size < 0 || c.Index > largest || c.Size > largest {
			return nil, fmt.Errorf("chunks from %d, %d of them", c.Index, c.Size)
		}
		place := spec.Place{Rank: c.Rank, Index: c.Index, Size: c.Size}
		if via == spec.Switched {
			place.At = spec.Owned
		}
		if c.Buffer == "" {
			place.At, place.Rank = spec.Members, 0
			all = append(all, place)
			continue
		}
		if place.Buffer, err = spec.ParseBuffer(c.Buffer); err != nil {
			return nil, err
		}
		switch {
		case place.At == spec.Owned:
		case c.Rank == t.at:
			place.Rank = 0
		default:
			id := t.remote(c.Rank, place.Buffer, via)
			place = spec.Place{
				At: spec.RemoteBuffer, ID: spec.Use(&t.rank.Blocks[from.Block].Remotes, via, id),
				Index: c.Index, Size: c.Size,
			}
		}
		all = append(all, place)
	}
	return all, nil
}

// remote is the rank's number of a remote buffer.
func (t *tables) remote(rank int, b spec.Buffer, via spec.ChannelType) int {
	all := &t.rank.Remotes
	i := slices.IndexFunc(*all, func(o spec.Remote) bool { return o.Rank == rank && o.Buffer == b })
	if i < 0 {
		i = len(*all)
		*all = append(*all, spec.Remote{Rank: rank, Buffer: b})
	}
	if !slices.Contains((*all)[i].Access, via) {
		(*all)[i].Access = append((*all)[i].Access, via)
	}
	return i
}

package plan

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// local checks chunks of the block's own rank.
func (b *Block) local(all ...Chunk) bool {
	for _, c := range all {
		if c.rank != b.rank {
			switch {
			case c.rank == nil:
				b.misuse("a chunk of no buffer")
			case c.rank.plan != b.rank.plan:
				b.misuse("a chunk of another plan")
			default:
				b.misuse("a chunk of rank %d where rank %d needs one of its own", c.rank.id, b.rank.id)
			}
			return false
		}
	}
	return true
}

// sizes checks that chunks are alike.
func (b *Block) sizes(all ...Chunk) bool {
	for _, c := range all {
		if c.Size != all[0].Size {
			b.misuse("%d chunks and %d chunks in one operation", all[0].Size, c.Size)
			return false
		}
	}
	return true
}

// slots checks that packets lie in scratch.
func (b *Block) slots(all ...Chunk) bool {
	for _, c := range all {
		if c.Buffer != Scratch {
			b.misuse("packets in the %v; they need scratch", c.Buffer)
			return false
		}
	}
	return true
}

// remote is the place of another rank's chunk, which must be that of the channel's peer if there is one.
func (b *Block) remote(via spec.ChannelType, c *Channel, chunk Chunk) (spec.Place, bool) {
	switch {
	case chunk.rank == nil || chunk.rank == b.rank:
		b.misuse("a chunk of rank %d's own where one of another rank belongs", b.rank.id)
		return spec.Place{}, false
	case chunk.rank.plan != b.rank.plan:
		b.misuse("a chunk of another plan")
		return spec.Place{}, false
	case c != nil && chunk.rank != c.to:
		b.misuse("a chunk of rank %d, and the channel leads to rank %d", chunk.rank.id, c.to.id)
		return spec.Place{}, false
	case !slices.Contains(b.rank.ends[via], chunk.rank.id):
		b.misuse("rank %d has no %v channel to rank %d", b.rank.id, via, chunk.rank.id)
		return spec.Place{}, false
	}
	r := b.rank
	id := slices.IndexFunc(r.remotes, func(o spec.Remote) bool {
		return o.Rank == chunk.rank.id && o.Buffer == chunk.Buffer
	})
	if id < 0 {
		id = len(r.remotes)
		r.remotes = append(r.remotes, spec.Remote{Rank: chunk.rank.id, Buffer: chunk.Buffer})
	}
	if !slices.Contains(r.remotes[id].Access, via) {
		r.remotes[id].Access = append(r.remotes[id].Access, via)
	}
	return spec.Place{
		At: spec.RemoteBuffer, ID: spec.Use(&b.remotes, via, id), Index: chunk.Index, Size: chunk.Size,
	}, true
}

// Copy copies.
func (b *Block) Copy(dst, src Chunk) { b.move(spec.Copy, dst, src) }

// CopyPackets writes data as packets to a slot of scratch.
func (b *Block) CopyPackets(slot, src Chunk) {
	if b.slots(slot) {
		b.move(spec.CopyPackets, slot, src)
	}
}

// UnpackPackets waits for the packets of a slot and writes their data.
func (b *Block) UnpackPackets(dst, slot Chunk) {
	if b.slots(slot) {
		b.move(spec.UnpackPackets, dst, slot)
	}
}

func (b *Block) move(kind spec.Kind, dst, src Chunk) {
	if b.local(dst, src) && b.sizes(dst, src) {
		b.add(spec.Op{
			Kind: kind, Src: []spec.Place{src.Place}, Dst: []spec.Place{dst.Place}, Group: b.group,
		})
	}
}

// Put writes to the buffer of a channel's peer.
func (b *Block) Put(c *Channel, dst, src Chunk) { b.put(spec.Put, c, dst, src) }

// PutWithSignal puts through a port, and signals when the data is there.
func (b *Block) PutWithSignal(c *Channel, dst, src Chunk) { b.put(spec.PutWithSignal, c, dst, src) }

// PutWithSignalAndFlush puts through a port, signals, and waits until the source is read.
func (b *Block) PutWithSignalAndFlush(c *Channel, dst, src Chunk) {
	b.put(spec.PutWithSignalAndFlush, c, dst, src)
}

// PutPackets writes data as packets to a slot of a channel's peer. Through a port the source is a slot that has
// packets.
func (b *Block) PutPackets(c *Channel, slot, src Chunk) {
	if b.slots(slot) && (c == nil || c.via == spec.Memory || b.slots(src)) {
		b.put(spec.PutPackets, c, slot, src)
	}
}

// ReadPutPackets waits for the packets of a slot and writes them to a slot of a channel's peer.
func (b *Block) ReadPutPackets(c *Channel, slot, src Chunk) {
	if b.slots(slot, src) {
		b.put(spec.ReadPutPackets, c, slot, src)
	}
}

func (b *Block) put(kind spec.Kind, c *Channel, dst, src Chunk) {
	id, ok := b.channel(c)
	if !ok || !b.local(src) || !b.sizes(dst, src) {
		return
	}
	to, ok := b.remote(c.via, c, dst)
	if !ok {
		return
	}
	op := spec.Op{Kind: kind, Via: c.via, Src: []spec.Place{src.Place}, Dst: []spec.Place{to}, Group: b.group}
	if c.via == spec.Port {
		op.Channels = []int{id}
	} else if kind == spec.PutWithSignal || kind == spec.PutWithSignalAndFlush {
		b.misuse("only ports put with a signal")
		return
	}
	b.add(op)
}

// Get reads from the buffer of a channel's peer.
func (b *Block) Get(c *Channel, dst, src Chunk) {
	id, ok := b.channel(c)
	if !ok || !b.local(dst) || !b.sizes(dst, src) {
		return
	}
	if from, ok := b.remote(c.via, c, src); ok {
		b.add(spec.Op{
			Kind: spec.Get, Via: c.via, Channels: []int{id}, Src: []spec.Place{from}, Dst: []spec.Place{dst.Place},
			Group: b.group,
		})
	}
}

// Reduce folds sources into a local chunk: local ones first, then those of other ranks, to which there must be memory
// channels.
func (b *Block) Reduce(dst Chunk, src ...Chunk) {
	if len(src) < 2 {
		b.misuse("%d sources to reduce", len(src))
		return
	}
	if !b.local(dst, src[0]) || !b.sizes(append([]Chunk{dst}, src...)...) {
		return
	}
	op := spec.Op{
		Kind: spec.Reduce, Reduce: b.rank.plan.options.Reduction, Dst: []spec.Place{dst.Place}, Group: b.group,
	}
	for i, s := range src {
		place := s.Place
		switch {
		case s.rank != b.rank:
			op.Kind, op.Via = spec.ReadReduce, spec.Memory
			var ok bool
			if place, ok = b.remote(spec.Memory, nil, s); !ok {
				return
			}
		case i > 0 && op.Kind == spec.ReadReduce:
			b.misuse("a local source behind a remote one")
			return
		}
		op.Src = append(op.Src, place)
	}
	if op.Kind == spec.ReadReduce && slices.ContainsFunc(op.Src[1:], isLocal) {
		b.misuse("one local source, and remote ones behind it; reduce the local ones first")
		return
	}
	b.add(op)
}

func isLocal(p spec.Place) bool { return p.At == spec.Local }

// ReducePackets waits for the packets of slots and folds them and a local source.
func (b *Block) ReducePackets(dst, src Chunk, slots ...Chunk) {
	if len(slots) == 0 {
		b.misuse("no packets to reduce")
		return
	}
	all := append([]Chunk{src}, slots...)
	if !b.local(append(all, dst)...) || !b.sizes(append(all, dst)...) || !b.slots(slots...) {
		return
	}
	op := spec.Op{
		Kind: spec.ReducePackets, Reduce: b.rank.plan.options.Reduction, Dst: []spec.Place{dst.Place}, Group: b.group,
	}
	for _, s := range all {
		op.Src = append(op.Src, s.Place)
	}
	b.add(op)
}

// member is a range of a switch's buffer, and the rank's number of the switch.
func (b *Block) member(s *Switch, at, n int) (spec.Place, bool) {
	id, ok := 0, false
	if s != nil {
		id, ok = s.ids[b.rank]
	}
	if !ok || at < 0 || n < 0 {
		b.misuse("rank %d is no member of the switch channel, or chunk %d is none", b.rank.id, at)
		return spec.Place{}, false
	}
	return spec.Place{
		At: spec.Members, ID: spec.Use(&b.channels, spec.Switched, id), Index: at, Size: n,
	}, true
}

// owned is a local chunk as operations of switches name it.
func owned(c Chunk) spec.Place {
	p := c.Place
	p.At, p.Rank = spec.Owned, c.rank.id
	return p
}

// SwitchReduce folds the chunks of all members, from one on, into a local chunk.
func (b *Block) SwitchReduce(s *Switch, dst Chunk, at int) {
	if p, ok := b.member(s, at, dst.Size); ok && b.local(dst) {
		p.Buffer = s.buffer
		b.add(spec.Op{
			Kind: spec.SwitchReduce, Via: spec.Switched, Channels: []int{p.ID}, Reduce: b.rank.plan.options.Reduction,
			Src: []spec.Place{p}, Dst: []spec.Place{owned(dst)},
		})
	}
}

// SwitchStore writes a local chunk to all members' chunks, from one on.
func (b *Block) SwitchStore(s *Switch, at int, src Chunk) { b.store(spec.SwitchStore, s, at, src) }

// SwitchStorePackets waits for the packets of a slot and writes them to the slots of all members, from one on.
func (b *Block) SwitchStorePackets(s *Switch, at int, slot Chunk) {
	if b.slots(slot) {
		b.store(spec.SwitchStorePackets, s, at, slot)
	}
}

func (b *Block) store(kind spec.Kind, s *Switch, at int, src Chunk) {
	if p, ok := b.member(s, at, src.Size); ok && b.local(src) {
		b.add(spec.Op{
			Kind: kind, Via: spec.Switched, Src: []spec.Place{owned(src)}, Dst: []spec.Place{p},
		})
	}
}

// SwitchReduceStore folds n chunks of all members, from one on, and writes the result to all members' chunks.
func (b *Block) SwitchReduceStore(s *Switch, to, from, n int) {
	src, ok := b.member(s, from, n)
	dst, also := b.member(s, to, n)
	if ok && also {
		b.add(spec.Op{
			Kind: spec.SwitchReduceStore, Via: spec.Switched, Reduce: b.rank.plan.options.Reduction,
			Src: []spec.Place{src}, Dst: []spec.Place{dst},
		})
	}
}

package gpu

import (
	"github.com/weftgo/weft/plan/spec"
)

// admit has the block wait, before it first pushes into a stream, until the rank to which that leads has begun.
func (b *block) admit(pushes []*push) {
	var streams []uint32
	var site spec.Site
	for _, p := range pushes {
		if !b.admits[p.stream] {
			b.admits[p.stream] = true
			streams, site = append(streams, b.e.streams[p.stream]), p.site
		}
	}
	if len(streams) > 0 {
		b.list(kindAdmit, 0, site, len(streams), streams)
	}
}

// push encodes what an operation pushes, each stream's in order: one operation has one push of a stream.
func (b *block) push(op *spec.Op, site spec.Site) {
	pushes := b.e.far.pushes[site]
	b.admit(pushes)
	for len(pushes) > 0 {
		var some, rest []*push
		taken := make(map[int]bool)
		for _, p := range pushes {
			if taken[p.stream] {
				rest = append(rest, p)
			} else {
				some = append(some, p)
			}
			taken[p.stream] = true
		}
		b.pushAll(op, site, some)
		pushes = rest
	}
}

func (b *block) pushAll(op *spec.Op, site spec.Site, pushes []*push) {
	flags, chunks := 0, 0
	if len(op.Dst) > 0 {
		chunks = op.Dst[0].Size
	}
	if op.Kind.Packets() {
		flags = flagUncut
	}
	b.head(kindPush, flags, 0, site, len(pushes), 3+len(pushes))
	b.words = append(b.words, uint32(chunks), groupOf(op), 0, 0, 0, 0, 0, 0)
	for _, p := range pushes {
		what := uint32(0)
		if p.at >= 0 {
			what |= pushCarries
		}
		if p.signals {
			what |= pushSignals
		}
		b.words = append(b.words, b.e.streams[p.stream], uint32(p.out), uint32(p.in), what)
	}
}

// flush ends a block that has pushed.
func (b *block) flush(id int) {
	var streams []uint32
	var site spec.Site
	for i, s := range b.e.far.streams {
		if s.from == b.e.rank && s.block == id {
			streams, site = append(streams, b.e.streams[i]), s.pushes[len(s.pushes)-1].site
		}
	}
	if len(streams) > 0 {
		b.list(kindFlush, 0, site, len(streams), streams)
	}
}

// landing encodes a block that lands what a stream brings to this rank: it stands for the rank that pushes, and does
// what that would do if it reached this rank's memory.
func (e *encoder) landing(n int) {
	s := &e.far.streams[n]
	b := &block{e: e, id: len(e.blocks), lands: true, uses: make(map[int]int)}
	e.blocks = append(e.blocks, b)
	for _, p := range s.pushes {
		if end := e.raised(p); end >= 0 {
			b.use(end)
		}
	}
	e.out.uses = max(e.out.uses, len(b.order))
	b.list(kindBegin, 0, s.pushes[0].site, 1, []uint32{e.streams[n]})
	for i := 0; i < len(s.pushes); {
		site := s.pushes[i].site
		if site.Inner < 0 {
			b.land(s.pushes[i])
			i++
			continue
		}
		site.Inner = -1
		b.loop(e.file.At(site), site, func() {
			for ; i < len(s.pushes) && s.pushes[i].site.Op == site.Op; i++ {
				b.land(s.pushes[i])
			}
		})
	}
}

// raised is this rank's end in which a push raises the count of signals; -1: in none.
func (e *encoder) raised(p *push) int {
	if p.end < 0 {
		return -1
	}
	return e.ends[p.end].Peer
}

// land encodes how a push lands: with the next one of its stream that has a signal, at the latest.
func (b *block) land(p *push) {
	b.pushing = append(b.pushing, p)
	if !p.signals {
		return
	}
	b.list(kindArrive, 0, p.site, 1, []uint32{b.e.streams[p.stream]})
	for _, x := range b.pushing {
		if x.at < 0 {
			continue
		}
		op := b.e.file.At(x.site)
		rank := &b.e.file.Ranks[x.site.Rank]
		d, flags := op.Dst[x.at], 0
		slot := op.Slot(false, x.at)
		if slot {
			flags = flagSend
		}
		to := owners(rank, &rank.Blocks[x.site.Block], op, d, x.site.Rank)[0]
		b.data(kindLand, flags, op, x.site, []uint64{entry(atInbox, b.e.rank, x.in)}, []uint64{to.entry(slot, d.Index)},
			0, 0, nil)
	}
	b.pushing = b.pushing[:0]
	if end := b.e.raised(p); end >= 0 {
		b.list(kindSignal, flagBehind, p.site, 0, b.set(end))
	}
}

// groupOf is the block's position in the group of an operation, and the group's size above it.
func groupOf(op *spec.Op) uint32 {
	if op.Group.Size == 0 {
		return 0
	}
	return uint32(op.Group.ID) | uint32(op.Group.Size)<<16
}

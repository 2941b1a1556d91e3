package host

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// push is a part of an operation of ports, of which some lead to other hosts.
type push struct {
	what     pushed
	link     *link // nil on this host
	dst, src program.Range
	end      int // this rank's, of a channel
}

// pushed is what a push is.
type pushed uint8

const (
	transfer pushed = iota
	tell            // which packets a transfer was: see mailbox
	raise           // the signal behind that
	signal          // that of a channel
	flush           // the sources may change
)

// pushes divides an operation of ports; nil if none leads to another host.
func (r *rank) pushes(s *program.Step) (all []push) {
	if s.Op.Via != spec.Port || r.engine.far == nil {
		return nil
	}
	far := false
	add := func(p push, rank int) {
		p.link = r.engine.far.links[rank]
		far = far || p.link != nil
		all = append(all, p)
	}
	for i, x := range s.Dst {
		p := push{what: transfer, dst: x, src: s.Src[0]}
		if s.Paired() {
			p.src = s.Src[i]
		}
		if x.From < x.To {
			add(p, x.Rank())
		}
		if x.Slot && r.engine.far.links[x.Rank()] != nil {
			p.what = tell
			add(p, x.Rank())
			p.what = raise
			add(p, x.Rank())
		}
	}
	each := func(what pushed) {
		for _, c := range s.Counters {
			add(push{what: what, end: c - r.first}, r.ends[c-r.first].peer)
		}
	}
	switch s.Op.Kind {
	case spec.Signal:
		each(signal)
	case spec.Flush:
		each(flush)
	case spec.PutWithSignal:
		each(signal)
	case spec.PutWithSignalAndFlush:
		each(signal)
		each(flush)
	}
	if !far {
		return nil
	}
	return all
}

// push runs an operation of ports as far as the fabric takes it, and says whether that is all of it.
func (b *block) push(s *step) bool {
	r := b.rank
	if s.kind == spec.ReadPutPackets && b.pushed == 0 {
		slot := r.at(s.src[0])
		b.at += channel.ForwardSlot(nil, slot[2*b.at:], r.flag)
		if 2*b.at < len(slot) {
			return b.await(s.src[0], b.at)
		}
	}
	for b.pushed < len(s.pushes) {
		if !b.give() {
			b.stop = onFabric
			return false
		}
	}
	return true
}

// give goes on with the next push of the block's operation, and says whether that is done.
func (b *block) give() bool {
	r, p := b.rank, &b.steps[b.pc].pushes[b.pushed]
	l, done := p.link, true
	switch {
	case l == nil:
		r.here(p)
	case p.what == transfer:
		done = b.transfer(p)
	case p.what == tell:
		m := r.mail
		at := lineBytes * m.sent[l.rank]
		line := m.window.Bytes()[m.outbox[l.rank]+at:][:lineBytes]
		from, to := p.dst.Bytes()
		binary.LittleEndian.PutUint64(line, uint64(from))
		binary.LittleEndian.PutUint64(line[8:], uint64(to))
		done = l.whole(l.peer.TryWrite(m.window.Remote(l.rank), m.there[l.rank]+at, m.window.Region(), m.outbox[l.rank]+at,
			lineBytes))
		if done {
			m.sent[l.rank]++
		}
	case p.what == raise:
		done = l.has(l.peer.TrySignal(l.signals[packets]))
	case p.what == signal:
		if x := &r.ends[p.end]; x.paired {
			done = l.has(l.peer.TrySignal(l.signals[x.signal]))
		}
	case p.what == flush:
		if !b.marked {
			b.mark, b.marked = l.peer.Mark(), true
		}
		done = l.flushed(b.mark)
	}
	if done {
		b.pushed++
		b.part, b.marked = 0, false
	}
	return done
}

// whole says whether all of a line was taken.
func (l *link) whole(n int, err error) bool {
	if err == nil && n > 0 && n < lineBytes {
		err = fmt.Errorf("%w: the fabric divides a write of %d bytes", weft.ErrUnsupported, lineBytes)
	}
	return l.has(n == lineBytes, err)
}

// here does a push to a rank of this host.
func (r *rank) here(p *push) {
	switch {
	case p.what == signal:
		r.signal([]int{p.end})
	case p.what != transfer:
	case p.dst.Slot:
		channel.CopySlot(r.at(p.dst), r.at(p.src))
	default:
		r.copy(p.dst, r.at(p.dst), r.at(p.src))
	}
}

// transfer posts what is left of a transfer: packets to where they land.
func (b *block) transfer(p *push) bool {
	r, l := b.rank, p.link
	from, to := p.src.Bytes()
	at, _ := p.dst.Bytes()
	src, dst := &r.places[p.src.Memory], &r.places[p.dst.Memory]
	remote := dst.remote
	if p.dst.Slot {
		remote = r.mail.landing.window.Remote(l.rank)
	} else {
		at += dst.at
	}
	n, err := l.peer.TryWrite(remote, at+b.part, src.region, src.at+from+b.part, to-from-b.part)
	b.part += n
	return l.has(b.part == to-from, err)
}

// goesOn says whether the fabric takes more of what a block pushes, and gives it that.
func (b *block) goesOn() bool {
	part := b.part
	if !b.give() && b.part == part {
		return false
	}
	b.stop = running
	return true
}

// place is where a memory lies for the fabric: of this rank in a region, of a rank of another host in what it reaches.
type place struct {
	region *fabric.Region
	remote fabric.Remote
	at     int
}

// placeIn is a rank's memory at an offset of a window.
func (r *rank) placeIn(w *weft.Window, rank, at int) place {
	if rank == r.self {
		return place{region: w.Region(), at: at}
	}
	return place{remote: w.Remote(rank), at: at}
}

// rest ends a launch between hosts: when all that this rank has pushed has left it, so operands may change, and all
// packets that others push here have come.
func (r *rank) rest(ctx context.Context) error {
	f := r.engine.far
	if f == nil {
		return nil
	}
	for q, l := range f.links {
		if l == nil {
			continue
		}
		mark := l.peer.Mark()
		var broken error
		err := f.rounds.AwaitFar(ctx, r.plan.Name, q, func() bool {
			broken = r.take()
			return broken != nil || l.flushed(mark) && (r.mail == nil || r.mail.took[q] == r.mail.come[q])
		})
		if broken != nil || err != nil {
			return cmp.Or(broken, err)
		}
	}
	return nil
}

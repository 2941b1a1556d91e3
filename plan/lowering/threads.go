package lowering

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// orderThreads puts a barrier of the block's threads where an operation that orders others has one before or after
// it.
func orderThreads(ops []*op) (all []*op) {
	for _, o := range ops {
		if o.Kind == spec.Pipeline {
			o.inner = orderThreads(o.inner)
		}
		if o.before {
			all = append(all, new(op))
		}
		all = append(all, o)
		if o.after {
			all = append(all, new(op))
		}
	}
	return all
}

// access is a range of a buffer that an operation touches: [from, to).
type access struct {
	of       space
	from, to int
	writes   bool
	slot     bool // of packets, which threads know to be ready by themselves
	op       int
	shared   sharing // of nothing if its threads may have any part
}

// sharing says which part of a range each thread of a block has. It is the same in ranges that begin at one place.
type sharing struct {
	by    split
	group spec.Group
}

// split is the unit by which threads take turns.
type split uint8

const (
	anyhow  split = iota
	units         // 16 bytes
	vectors       // 16 bytes, through a switch
	packets       // what a packet carries
	alone         // one thread has all
)

// space is a buffer: of this rank, of a peer, or of all members of a switch.
type space struct {
	rank   int
	buffer spec.Buffer
}

// separate puts a barrier of the block's threads in front of every operation that touches what one since the last
// barrier touched, where one of them writes.
func (r *rules) separate(ops []*op) (all []*op) {
	var touched touched
	for i, o := range ops {
		if meets(o) {
			touched = touched[:0]
			all = append(all, o)
			continue
		}
		if o.Kind == spec.Pipeline {
			o.inner = r.separate(o.inner)
		}
		mine := r.accesses(o)
		for k := range mine {
			mine[k].op = i
		}
		if r.sound {
			if slices.ContainsFunc(mine, touched.conflicts) {
				all = append(all, new(op))
				touched = touched[:0]
			}
			touched = append(touched, mine...)
		} else if touched.replace(mine) {
			all = append(all, new(op))
		}
		all = append(all, o)
	}
	return all
}

// touched is what was touched since the last barrier.
type touched []access

func (t touched) conflicts(a access) bool { return slices.ContainsFunc(t, a.conflicts) }

// conflicts says whether two accesses are of different operations, of the same bytes, and one writes. Packets
// are not waited for.
func (a access) conflicts(b access) bool {
	return a.overlaps(b) && a.op != b.op && (a.writes || b.writes) && !(a.slot && b.slot) && !a.same(b)
}

// same says whether each thread has the same part of two ranges.
func (a access) same(b access) bool {
	by := a.shared.by
	return by != anyhow && by != alone && a.shared == b.shared && a.from == b.from && a.slot == b.slot
}

func (a access) overlaps(b access) bool { return a.of == b.of && a.from < b.to && b.from < a.to }

// replace notes the accesses of an operation one by one, and says whether a barrier is to be in front of it. It
// keeps the last access of each range only. At a conflict it forgets all, with what it noted of the same
// operation.
func (t *touched) replace(mine []access) (conflict bool) {
	for _, a := range mine {
		if t.conflicts(a) {
			conflict = true
			*t = (*t)[:0]
		}
		kept := (*t)[:0:0]
		for _, b := range *t {
			if !a.overlaps(b) {
				kept = append(kept, b)
				continue
			}
			if left := b; left.from < a.from {
				left.to = a.from
				kept = append(kept, left)
			}
			if right := b; right.to > a.to {
				right.from = a.to
				kept = append(kept, right)
			}
		}
		*t = append(kept, a)
	}
	return conflict
}

// accesses is what an operation touches, as far as the rules look at it.
func (r *rules) accesses(o *op) (all []access) {
	if o.Kind == spec.Pipeline {
		for _, inner := range o.inner {
			all = append(all, r.accesses(inner)...)
		}
		return all
	}
	if r.sound {
		for i, p := range o.Src {
			all = r.touches(all, o, p, o.Slot(true, i), false)
		}
		for i, p := range o.Dst {
			all = r.touches(all, o, p, o.Slot(false, i), true)
		}
		return all
	}
	src, dst := o.Src, o.Dst
	switch o.Kind {
	case spec.Copy:
	case spec.CopyPackets, spec.Put, spec.PutWithSignal, spec.PutWithSignalAndFlush, spec.PutPackets:
		dst = nil
	case spec.UnpackPackets, spec.Get:
		src = nil
	case spec.Reduce, spec.ReadReduce, spec.ReduceSend, spec.ReadReduceSend:
		dst = dst[:1]
	case spec.ReducePackets, spec.ReduceSendPackets, spec.ReduceCopyPackets, spec.ReduceCopySendPackets:
		src, dst = src[1:], dst[:1]
	default:
		return nil
	}
	for _, p := range src {
		if p.At == spec.Local {
			all = append(all, r.local(p, false))
		}
	}
	for _, p := range dst {
		if p.At == spec.Local {
			all = append(all, r.local(p, true))
		}
	}
	return all
}

func (r *rules) local(p spec.Place, writes bool) access {
	return access{of: space{r.rank, p.Buffer}, from: p.Index, to: p.Index + p.Size, writes: writes}
}

// touches appends all that a place is: the packets of a slot lie where two chunks of data do, and a switch has
// several owners.
func (r *rules) touches(all []access, o *op, p spec.Place, slot, writes bool) []access {
	buffer, owners := p.Buffer, []int{r.rank}
	switch p.At {
	case spec.RemoteBuffer:
		b := r.has.Remotes[r.block.Remote(o.Via, p.ID)]
		buffer, owners = b.Buffer, []int{b.Rank}
	case spec.Members:
		s := r.has.Switches[r.block.Channel(spec.Switched, p.ID)]
		buffer, owners = s.Buffer, s.Ranks
	}
	a := access{from: p.Index, to: p.Index + p.Size, writes: writes}
	if slot {
		a.from, a.to = 2*a.from, 2*a.to
		a.slot = o.Kind != spec.PutPackets || o.Via != spec.Port // a port takes what is there
	}
	for _, rank := range owners {
		a.of = space{rank, buffer}
		all = append(all, a)
	}
	return all
}

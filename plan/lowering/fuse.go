package lowering

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// fuse folds the operations of a block from left to right: as long as what there is and what comes next become
// one, they do. Where they do not, each may still make a barrier of the other's needless.
func (r *rules) fuse(ops []*op) (all []*op) {
	for _, next := range ops {
		if len(all) > 0 {
			last := len(all) - 1
			if one := r.allowed(r.one(all[last], next)); one != nil {
				all[last] = one
				continue
			}
		}
		// A pipeline that took the place of the barrier in front of it keeps its operations as they are.
		if next.Kind == spec.Pipeline {
			next.inner = r.fuse(next.inner)
		}
		all = append(all, next)
	}
	return all
}

// allowed is an operation that two became, unless the threads of a block may not do it.
func (r *rules) allowed(one *op) *op {
	if one != nil && r.sound && one.Kind != spec.Pipeline && !r.apart(one) {
		return nil
	}
	return one
}

// one is what two operations in a row become, or nil.
func (r *rules) one(a, b *op) *op {
	switch a.Kind {
	case spec.Nop:
		if b.Kind == spec.Nop || b.Kind == spec.Barrier || b.Kind == spec.Pipeline && r.startsSynced(b) {
			return b
		}
		b.before = false
	case spec.Barrier:
		if b.Kind == spec.Nop {
			return a
		}
		b.before = false
	case spec.Pipeline:
		if r.endsSynced(a) {
			if b.Kind == spec.Nop {
				return a
			}
			b.before = false
		}
	case spec.SemAcquire, spec.SemRelease, spec.Signal, spec.Wait, spec.RelaxedSignal, spec.RelaxedWait, spec.Flush:
		return r.oneSync(a, b)
	case spec.SwitchReduce:
		return r.oneSwitch(a, b)
	default:
		if a.Group == b.Group {
			return r.oneOnData(a, b)
		}
	}
	return nil
}

// startsSynced says whether the block's threads meet where a pipeline begins.
func (r *rules) startsSynced(o *op) bool {
	if len(o.inner) == 0 {
		return false
	}
	first, last := o.inner[0], o.inner[len(o.inner)-1]
	return first.before || meets(first) || meets(last) && !r.sound
}

// endsSynced says whether they meet where it ends.
func (r *rules) endsSynced(o *op) bool {
	if len(o.inner) == 0 {
		return false
	}
	last := o.inner[len(o.inner)-1]
	return last.after || meets(last) && r.sound
}

// meets says whether an operation is a barrier of the block's threads.
func meets(o *op) bool { return o.Kind == spec.Nop || o.Kind == spec.Barrier }

// oneSync fuses two operations that order others.
func (r *rules) oneSync(a, b *op) *op {
	both := &op{Op: a.Op, before: a.before || b.before, after: a.after || b.after}
	switch {
	case a.Kind != b.Kind || a.Via != b.Via || r.sound && (r.competes(a) || r.competes(b)):
	case a.channels == nil:
		both.Semaphores = slices.Concat(a.Semaphores, b.Semaphores)
		return both
	case a.Kind == spec.Flush || !a.channels.meets(b.channels):
		both.channels = a.channels.union(b.channels)
		return both
	}
	if b.before || meets(b) || b.Kind == spec.Pipeline && r.startsSynced(b) {
		a.after = false
	}
	return nil
}

// counter is what blocks of a rank wait on: its end of a channel, or, without a type of channel, its semaphore.
type counter struct {
	via spec.ChannelType
	id  int
}

// competes says whether an operation takes or gives back what several blocks of the rank take. The threads of one
// operation do so in any order, so it would hold one while it waits for another, which no block did that took them one
// by one.
func (r *rules) competes(o *op) bool {
	return slices.ContainsFunc(counters(r.block, o), func(c counter) bool { return r.contended[c] })
}

// counters are those that an operation takes, or gives back.
func counters(b *spec.Block, o *op) (all []counter) {
	switch o.Kind {
	case spec.SemAcquire, spec.SemRelease:
		for _, id := range o.Semaphores {
			all = append(all, counter{spec.NoChannel, id})
		}
	case spec.Wait, spec.RelaxedWait:
		for _, c := range o.channels.list() {
			all = append(all, counter{o.Via, b.Channel(o.Via, c)})
		}
	}
	return all
}

// contended finds what several blocks of a rank take.
func contended(rank *spec.Rank, blocks [][]*op) map[counter]bool {
	taker, found := make(map[counter]int), make(map[counter]bool)
	var look func(b int, ops []*op)
	look = func(b int, ops []*op) {
		for _, o := range ops {
			look(b, o.inner)
			if o.Kind == spec.SemRelease {
				continue
			}
			for _, c := range counters(&rank.Blocks[b], o) {
				if first, known := taker[c]; known && first != b {
					found[c] = true
				}
				taker[c] = b
			}
		}
	}
	for b, ops := range blocks {
		look(b, ops)
	}
	return found
}

// oneSwitch fuses a reduction of a switch's members and the store of its result to them.
func (r *rules) oneSwitch(a, b *op) *op {
	if b.Kind != spec.SwitchStore || a.Src[0].ID != b.Dst[0].ID || a.Src[0].Size != b.Dst[0].Size ||
		a.Dst[0] != b.Src[0] {
		return nil
	}
	from, to, result := a.Src[0], b.Dst[0], a.Dst[0]
	if r.sound && (from.Index != to.Index || result.Buffer != from.Buffer || result.Index != to.Index) {
		return nil
	}
	members := spec.Place{At: spec.Members, ID: from.ID, Index: from.Index, Size: from.Size}
	return &op{Op: spec.Op{
		Kind: spec.SwitchReduceStore, Via: spec.Switched, Reduce: a.Reduce,
		Src: []spec.Place{members}, Dst: []spec.Place{members},
	}}
}

// oneOnData fuses two operations on data or packets that a block, or its position in a group, does.
func (r *rules) oneOnData(a, b *op) *op {
	switch a.Kind {
	case spec.Get, spec.Put, spec.PutPackets, spec.PutWithSignal, spec.PutWithSignalAndFlush:
		if a.Kind == b.Kind && a.Via == b.Via && a.Src[0].Size == b.Src[0].Size &&
			!(r.sound && a.Kind != spec.Get && a.Src[0].Buffer != b.Src[0].Buffer) {
			return a.with(a.Kind, b.Src, b.Dst, b.Channels)
		}
	case spec.ReadPutPackets:
		if a.Kind == b.Kind && a.Via == b.Via && a.Src[0] == b.Src[0] {
			return a.with(a.Kind, nil, b.Dst, b.Channels)
		}
	case spec.Reduce, spec.ReadReduce, spec.ReducePackets:
		if a.Kind == b.Kind && a.Via == b.Via && a.Src[0] == b.Src[0] && a.Dst[0] == b.Dst[0] && a.Reduce == b.Reduce &&
			!(r.sound && !r.adds(a, b)) {
			return a.with(a.Kind, b.Src[1:], nil, nil)
		}
	}
	return r.oneThatSends(a, b)
}

// adds says whether two reductions in a row to one place are one of all sources: the place is the source that
// they share, and no other.
func (r *rules) adds(a, b *op) bool {
	if a.Src[0] != a.Dst[0] {
		return false
	}
	to := r.touches(nil, a, a.Dst[0], false, true)[0]
	for i, p := range b.Src[1:] {
		if r.touches(nil, b, p, b.Slot(true, i+1), false)[0].overlaps(to) {
			return false
		}
	}
	return true
}

// apart says whether the threads of a block may do all of an operation without waiting for each other: what it writes
// it touches nowhere else, unless it is the same range, of which each thread has the same part.
func (r *rules) apart(o *op) bool {
	all := r.accesses(o)
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.overlaps(b) && (a.writes || b.writes) && (a.from != b.from || a.to != b.to) {
				return false
			}
		}
	}
	return true
}

// oneThatSends fuses a reduction and an operation that passes its result on.
func (r *rules) oneThatSends(a, b *op) *op {
	if len(b.Src) == 0 || len(a.Dst) == 0 {
		return nil
	}
	data, mem := a.Dst[0] == b.Src[0], b.Via == spec.Memory
	switch {
	case (a.Kind == spec.Reduce || a.Kind == spec.ReduceSend) && b.Kind == spec.Put && data && mem:
		return a.sends(spec.ReduceSend, b)
	case (a.Kind == spec.ReadReduce || a.Kind == spec.ReadReduceSend) && b.Kind == spec.Put && data && mem:
		return a.sends(spec.ReadReduceSend, b)
	case (a.Kind == spec.ReducePackets || a.Kind == spec.ReduceSendPackets) && b.Kind == spec.PutPackets && data && mem:
		return a.sends(spec.ReduceSendPackets, b)
	case a.Kind == spec.ReducePackets && b.Kind == spec.CopyPackets && data:
		return a.with(spec.ReduceCopyPackets, nil, b.Dst, nil)
	case a.Kind == spec.ReduceCopyPackets || a.Kind == spec.ReduceCopySendPackets:
		slot := a.Dst[1] == b.Src[0]
		if mem && (b.Kind == spec.PutPackets && data || b.Kind == spec.ReadPutPackets && slot) {
			return a.sends(spec.ReduceCopySendPackets, b)
		}
	}
	return nil
}

// with is an operation with more places.
func (a *op) with(kind spec.Kind, src, dst []spec.Place, channels []int) *op {
	o := &op{Op: a.Op}
	o.Kind = kind
	o.Src, o.Dst = slices.Concat(a.Src, src), slices.Concat(a.Dst, dst)
	if a.Channels != nil {
		o.Channels = slices.Concat(a.Channels, channels)
	}
	return o
}

// sends is a reduction that passes its result on through memory.
func (a *op) sends(kind spec.Kind, b *op) *op {
	o := a.with(kind, nil, b.Dst, nil)
	o.Via = spec.Memory
	return o
}

package lowering

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// Fix is a plan with the barriers of blocks' threads that it lacks, and with puts from several buffers apart. The
// file must break no rule. Nothing else changes: a plan that waits for what never comes still does.
//
// Threads meet behind what one of them waits for, before what one of them tells others, and between operations of which
// one writes what another touches, unless each thread has the same part in both.
func Fix(f *spec.File) *spec.File {
	return blocks(f, func(r *rules, ops []*op) []*op {
		var m meeting
		return r.meet(several(ops), &m)
	})
}

// Fuse is a plan in which operations in a row are one where that means the same, by the sound rules of the package. The
// file must break no rule.
func Fuse(f *spec.File) *spec.File { return blocks(f, (*rules).fuse) }

// Join is the operation that two in a row of a block are together, if there is one: by the sound rules of the package,
// or because they do the same on ranges that touch. [Fuse] leaves the latter apart, as MSCCL++ does.
func Join(f *spec.File, rank, block int, a, b spec.Op) (one spec.Op, ok bool) {
	has := &f.Ranks[rank]
	r := &rules{sound: true, rank: rank, has: has, block: &has.Blocks[block]}
	if a.Kind.Syncs() && a.Kind == b.Kind {
		r.contended = contended(has, recordedOf(has))
	}
	two := recorded([]spec.Op{a, b})
	joined := r.allowed(r.one(two[0], two[1]))
	if joined == nil && !(f.ReuseResources && (inScratch(&a) || inScratch(&b))) {
		joined = r.allowed(wider(&a, &b))
	}
	if joined == nil {
		return spec.Op{}, false
	}
	return plain([]*op{joined})[0], true
}

// inScratch says whether an operation may touch scratch. Chunks of scratch that plans share need not touch where
// MSCCL++ runs them.
func inScratch(o *spec.Op) bool {
	return slices.ContainsFunc(slices.Concat(o.Src, o.Dst), func(p spec.Place) bool {
		return p.Buffer == spec.Scratch || p.At == spec.RemoteBuffer || p.At == spec.Members
	})
}

// wider is two operations that do the same as one on twice the range, or nil. Parts of a group would be other parts,
// and of two signals there would be one.
func wider(a, b *spec.Op) *op {
	if a.Kind != b.Kind || a.Kind.Syncs() || a.Kind == spec.Pipeline || sends(&op{Op: *a}) || a.Via != b.Via ||
		a.Reduce != b.Reduce || a.Group.Size > 0 || b.Group.Size > 0 || !slices.Equal(a.Channels, b.Channels) {
		return nil
	}
	src, ok := behind(a.Src, b.Src)
	if !ok {
		return nil
	}
	dst, ok := behind(a.Dst, b.Dst)
	if !ok {
		return nil
	}
	o := &op{Op: *a}
	o.Src, o.Dst = src, dst
	return o
}

// behind is each place with the one of another list behind it, if they touch.
func behind(a, b []spec.Place) (all []spec.Place, ok bool) {
	if len(a) != len(b) {
		return nil, false
	}
	for i, p := range a {
		p.Index += p.Size
		p.Size = b[i].Size
		if p != b[i] {
			return nil, false
		}
		p.Index, p.Size = a[i].Index, a[i].Size+b[i].Size
		all = append(all, p)
	}
	return all, true
}

// blocks is a plan with other operations in each block.
func blocks(f *spec.File, change func(*rules, []*op) []*op) *spec.File {
	to := *f
	to.Ranks = slices.Clone(f.Ranks)
	for i := range to.Ranks {
		rank := &to.Ranks[i]
		rank.Blocks = slices.Clone(rank.Blocks)
		all := recordedOf(rank)
		r := &rules{sound: true, rank: i, has: rank, contended: contended(rank, all)}
		for b := range rank.Blocks {
			r.block = &rank.Blocks[b]
			r.block.Ops = plain(change(r, all[b]))
		}
	}
	return &to
}

// recordedOf is recorded of each block of a rank.
func recordedOf(rank *spec.Rank) (all [][]*op) {
	for b := range rank.Blocks {
		all = append(all, recorded(rank.Blocks[b].Ops))
	}
	return all
}

// recorded is the operations of a plan as rules have them.
func recorded(ops []spec.Op) (all []*op) {
	for _, o := range ops {
		r := &op{Op: o, inner: recorded(o.Ops)}
		if o.Kind.Syncs() && o.Via != spec.NoChannel {
			r.channels = newSet(o.Channels...)
		}
		all = append(all, r)
	}
	return all
}

// several takes puts apart whose sources are in several buffers.
func several(ops []*op) (all []*op) {
	for _, o := range ops {
		o.inner = several(o.inner)
		from := 0
		for i := range o.Src {
			if puts(o) && o.Src[i].Buffer != o.Src[from].Buffer {
				all = append(all, o.part(from, i))
				from = i
			}
		}
		if from > 0 {
			o = o.part(from, len(o.Src))
		}
		all = append(all, o)
	}
	return all
}

func puts(o *op) bool {
	return o.Kind == spec.Put || o.Kind == spec.PutPackets || sends(o)
}

// sends says whether an operation is a put that signals.
func sends(o *op) bool { return o.Kind == spec.PutWithSignal || o.Kind == spec.PutWithSignalAndFlush }

// part is some of the puts of an operation.
func (a *op) part(from, to int) *op {
	o := &op{Op: a.Op}
	o.Src, o.Dst = a.Src[from:to], a.Dst[from:to]
	if a.Channels != nil {
		o.Channels = a.Channels[from:to]
	}
	return o
}

// meeting is what a block's threads did since they met.
type meeting struct {
	touched touched
	moved   bool // some moved data
	waited  bool // some waited
}

// meet puts barriers where threads must meet.
func (r *rules) meet(ops []*op, m *meeting) (all []*op) {
	for _, o := range ops {
		if meets(o) {
			*m = meeting{}
			all = append(all, o)
			continue
		}
		mine := r.parts(o)
		if o.Kind == spec.Pipeline {
			// What is behind the last operation of a window is before the first of the next.
			var end meeting
			o.inner = r.meet(o.inner, &end)
			if r.needs(o, &end) && !(len(o.inner) > 0 && meets(o.inner[0])) {
				end = meeting{}
				o.inner = append([]*op{new(op)}, r.meet(o.inner, &end)...)
			}
			if r.needs(o, m) && !(len(o.inner) > 0 && meets(o.inner[0])) {
				all = append(all, new(op))
				*m = meeting{}
			}
			*m = meeting{append(m.touched, mine...), m.moved || end.moved, m.waited || end.waited}
			all = append(all, o)
			continue
		}
		if r.needs(o, m) {
			all = append(all, new(op))
			*m = meeting{}
		}
		m.touched = append(m.touched, mine...)
		m.moved = m.moved || !o.Kind.Syncs() && o.Via != spec.Port
		m.waited = m.waited || waits(o)
		all = append(all, o)
	}
	return all
}

// needs says whether a block's threads must have met before an operation.
func (r *rules) needs(o *op, m *meeting) bool {
	switch {
	case o.Kind == spec.Pipeline:
		for _, inner := range o.inner {
			if meets(inner) {
				return false // and what is before that has been looked at
			}
			if r.needs(inner, m) {
				return true
			}
		}
		return false
	case signals(o):
		return m.moved || m.waited || slices.ContainsFunc(r.parts(o), m.touched.conflicts)
	case o.Kind.Syncs():
		return false
	}
	return m.waited || slices.ContainsFunc(r.parts(o), m.touched.conflicts)
}

// signals says whether one thread tells others how far the block is.
func signals(o *op) bool {
	return o.Kind == spec.Signal || o.Kind == spec.RelaxedSignal || o.Kind == spec.SemRelease || sends(o)
}

// waits says whether one thread waits, and the others go on.
func waits(o *op) bool {
	switch o.Kind {
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire, spec.Flush, spec.PutWithSignalAndFlush:
		return true
	}
	return false
}

// parts is what an operation touches, and how its threads share that. Accesses of one operation do not wait for each
// other.
func (r *rules) parts(o *op) (all []access) {
	if o.Kind == spec.Pipeline {
		for _, inner := range o.inner {
			all = append(all, r.parts(inner)...)
		}
		return all
	}
	r.ops++
	for _, a := range r.accesses(o) {
		a.op, a.shared = r.ops, sharing{by: units, group: o.Group}
		switch {
		case o.Via == spec.Port:
			a.shared.by = alone
		case o.Via == spec.Switched && o.Kind != spec.SwitchStorePackets:
			a.shared.by = vectors
		case o.Kind.Packets():
			a.shared.by = packets
		}
		all = append(all, a)
	}
	return all
}

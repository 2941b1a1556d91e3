package plan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// Build gives the file, or the first misuse with the file and line where it was written. A plan that it gives may
// still be wrong; [Verify] says so.
func (p *Plan) Build() (*File, error) {
	lines := make(map[spec.Site]string)
	f := *p.file
	f.Ranks = nil
	for _, r := range p.ranks {
		f.Ranks = append(f.Ranks, r.build(lines))
	}
	if p.err != nil {
		return nil, p.err
	}
	if err := f.Check(); err != nil {
		if fault, ok := errors.AsType[*spec.Error](err); ok && lines[fault.Site] != "" {
			return nil, fmt.Errorf("plan: %s: %w", lines[fault.Site], err)
		}
		return nil, err
	}
	return &f, nil
}

func (r *Rank) build(lines map[spec.Site]string) spec.Rank {
	out := spec.Rank{
		Input: r.plan.collective.in, Output: r.plan.collective.out, Scratch: r.scratch,
		Switches: r.switches, Remotes: r.remotes, Semaphores: r.semaphores,
	}
	for _, via := range r.types {
		out.Channels = append(out.Channels, spec.Channels{Type: via, Peers: r.ends[via]})
	}
	for i, b := range r.blocks {
		if b.loop != nil {
			r.plan.misuse("block %d of rank %d has a loop that does not end", i, r.id)
		}
		out.Blocks = append(out.Blocks, spec.Block{
			Ops: b.build(spec.Site{Rank: r.id, Block: i, Op: -1, Inner: -1}, lines), Channels: b.channels, Remotes: b.remotes,
		})
	}
	return out
}

func (b *program) build(site spec.Site, lines map[spec.Site]string) []spec.Op {
	all := b.ops
	if !b.rank.plan.options.Explicit {
		all = place(fuse(all))
	}
	ops := make([]spec.Op, 0, len(all))
	for i, r := range all {
		site.Op, site.Inner = i, -1
		lines[site] = r.at
		if r.Kind == spec.Pipeline {
			r.Ops = make([]spec.Op, 0, len(r.inner))
			for k, o := range r.inner {
				site.Inner = k
				lines[site] = o.at
				r.Ops = append(r.Ops, o.Op)
			}
		}
		ops = append(ops, r.Op)
	}
	return ops
}

// fuse makes one operation of neighbours that mean the same together. It never fuses what reads what the first
// writes, but for results, which are sent as they are computed.
func fuse(all []recorded) []recorded {
	var out []recorded
	for _, next := range all {
		if next.Kind == spec.Pipeline {
			next.inner = fuse(next.inner)
		}
		if n := len(out); n > 0 {
			if fused, ok := pair(out[n-1], next); ok {
				out[n-1] = fused
				continue
			}
		}
		out = append(out, next)
	}
	return out
}

// pair fuses two operations, if it can.
func pair(a, b recorded) (recorded, bool) {
	same := a.Group == b.Group && len(a.Src) > 0 && len(b.Src) > 0 && a.Src[0].Size == b.Src[0].Size
	sent := same && len(a.Dst) > 0 && b.Src[0] == a.Dst[0] // what the second sends is the result of the first
	kind := a.Kind
	switch {
	case a.Kind == spec.Nop && b.Kind == spec.Nop:
		return a, true
	case a.Kind == b.Kind && a.Via == b.Via && a.Kind <= spec.Flush && a.Kind >= spec.Signal:
		if meets(a.Channels, b.Channels) {
			return a, false
		}
		a.Channels = slices.Concat(a.Channels, b.Channels)
		return a, true
	case a.Kind == b.Kind && (a.Kind == spec.SemAcquire || a.Kind == spec.SemRelease):
		a.Semaphores = slices.Concat(a.Semaphores, b.Semaphores)
		return a, true
	case a.Kind == b.Kind && a.Via == b.Via && a.Kind == spec.ReadPutPackets && same && a.Src[0] == b.Src[0],
		a.Kind == b.Kind && a.Via == spec.Memory && same && a.Src[0].Buffer == b.Src[0].Buffer &&
			(a.Kind == spec.Put || a.Kind == spec.PutPackets || a.Kind == spec.Get) && !clash(a.spots, b.spots),
		a.Kind == b.Kind && a.Via == spec.Port && b.Via == spec.Port && same && a.Src[0].Buffer == b.Src[0].Buffer &&
			a.Kind != spec.ReadPutPackets && !meets(a.Channels, b.Channels):
	case sent && b.Kind == spec.Put && b.Via == spec.Memory && (a.Kind == spec.Reduce || a.Kind == spec.ReduceSend):
		kind = spec.ReduceSend
	case sent && b.Kind == spec.Put && b.Via == spec.Memory &&
		(a.Kind == spec.ReadReduce || a.Kind == spec.ReadReduceSend):
		kind = spec.ReadReduceSend
	case sent && b.Kind == spec.PutPackets && b.Via == spec.Memory &&
		(a.Kind == spec.ReducePackets || a.Kind == spec.ReduceSendPackets):
		kind = spec.ReduceSendPackets
	case sent && b.Kind == spec.CopyPackets && a.Kind == spec.ReducePackets:
		kind = spec.ReduceCopyPackets
	case sent && b.Kind == spec.PutPackets && b.Via == spec.Memory &&
		(a.Kind == spec.ReduceCopyPackets || a.Kind == spec.ReduceCopySendPackets):
		kind = spec.ReduceCopySendPackets
	default:
		return a, false
	}
	switch {
	case a.Kind != b.Kind || kind == spec.ReadPutPackets:
		a.Dst = slices.Concat(a.Dst, b.Dst)
	default:
		a.Src, a.Dst = slices.Concat(a.Src, b.Src), slices.Concat(a.Dst, b.Dst)
	}
	if b.Channels != nil {
		a.Channels = slices.Concat(a.Channels, b.Channels)
	}
	if kind != spec.ReduceCopyPackets {
		a.Via = b.Via
	}
	a.Kind = kind
	a.spots = slices.Concat(a.spots, b.spots)
	return a, true
}

// meets says whether two lists have a number in common.
func meets(a, b []int) bool {
	return slices.ContainsFunc(b, func(id int) bool { return slices.Contains(a, id) })
}

// clash says whether two lists touch the same chunks, and one writes them.
func clash(a, b []spot) bool {
	return slices.ContainsFunc(a, func(x spot) bool {
		return slices.ContainsFunc(b, func(y spot) bool { return x.clashes(y) })
	})
}

func (x spot) clashes(y spot) bool {
	return (x.write || y.write) && x.rank == y.rank && x.place.Buffer == y.place.Buffer &&
		x.place.Index < y.place.Index+y.place.Size && y.place.Index < x.place.Index+x.place.Size
}

// epoch is what a block did since its threads last met.
type epoch struct {
	done   []recorded // operations on data
	waited bool       // one thread knows what the others do not
}

// place puts nops where threads must meet: behind waits, before signals, and between operations of which one touches
// what another thread wrote.
func place(all []recorded) []recorded {
	var e epoch
	return e.place(all)
}

func (e *epoch) place(all []recorded) (out []recorded) {
	for _, r := range all {
		if r.Kind == spec.Pipeline {
			r.inner = e.pipeline(&out, r)
			out = append(out, r)
			continue
		}
		if e.needs(r) {
			out = append(out, recorded{Op: spec.Op{Kind: spec.Nop}, at: r.at})
			*e = epoch{}
		}
		out = append(out, r)
		e.add(r)
	}
	return out
}

// pipeline places those in a loop, behind which its first operations come again.
func (e *epoch) pipeline(out *[]recorded, r recorded) []recorded {
	nop := recorded{Op: spec.Op{Kind: spec.Nop}, at: r.at}
	if e.waited || len(e.done) > 0 {
		*out = append(*out, nop)
		*e = epoch{}
	}
	body := e.place(r.inner)
	again := epoch{done: slices.Clone(e.done), waited: e.waited}
	for _, o := range body {
		// The next window lies elsewhere, so threads do not keep their bytes.
		if again.needs(o) || len(again.done) > 0 && len(o.spots) > 0 && clashAny(again.done, o.spots) {
			body = append(body, nop)
			*e = epoch{}
			break
		}
		again.add(o)
		if o.Kind == spec.Nop || o.Kind == spec.Barrier {
			break
		}
	}
	return body
}

func clashAny(done []recorded, spots []spot) bool {
	return slices.ContainsFunc(done, func(d recorded) bool { return clash(d.spots, spots) })
}

// needs says whether an operation needs a nop before it.
func (e *epoch) needs(r recorded) bool {
	switch {
	case r.Kind == spec.Nop || r.Kind == spec.Barrier:
		return false
	case r.Kind == spec.Wait || r.Kind == spec.RelaxedWait || r.Kind == spec.SemAcquire || r.Kind == spec.Flush:
		return false
	case r.Kind.Syncs(), r.Via == spec.Port:
		return e.waited || len(e.done) > 0
	case e.waited:
		return true
	}
	for _, d := range e.done {
		for _, x := range d.spots {
			for _, y := range r.spots {
				alike := d.Group == r.Group && d.Kind.Packets() == r.Kind.Packets() && x.place.Index == y.place.Index &&
					x.place.Size == y.place.Size
				if x.clashes(y) && !alike && !(x.slot && y.slot) {
					return true
				}
			}
		}
	}
	return false
}

func (e *epoch) add(r recorded) {
	switch r.Kind {
	case spec.Nop, spec.Barrier:
		*e = epoch{}
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire, spec.Flush:
		e.waited = true
	case spec.Signal, spec.RelaxedSignal, spec.SemRelease:
	case spec.PutWithSignalAndFlush:
		e.waited = true
		e.done = append(e.done, r)
	default:
		e.done = append(e.done, r)
	}
}

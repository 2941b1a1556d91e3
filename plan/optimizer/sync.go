package optimizer

import (
	"cmp"
	"slices"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// removal is synchronisation that goes together: a signal and its wait, one meeting at a barrier, a nop.
type removal struct {
	kind sort
	cuts []cut
}

// sort is a kind of synchronisation, in the order in which it is removed: where a signal is gone, so may be the nop
// that it needed.
type sort int

const (
	signals sort = iota
	semaphores
	barriers
	flushes
	nops
	sorts
)

// cut is a part of an operation that is removed: an entry of its list of channels or semaphores, or what whole,
// unflushed and smaller say.
type cut struct {
	site  spec.Site
	entry int
}

const (
	whole     = -1 - iota // the operation; blocks that met at a barrier have a nop in its place
	unflushed             // the flush of a put that signals and flushes
	smaller               // one of the blocks that meet at a barrier
)

// removals is all synchronisation of a kind that a plan has, such that what is alike on the ranks stands together.
func removals(f *spec.File, kind sort) (all []removal) {
	p := program.Of(f, program.Shapes(f)[0])
	switch kind {
	case signals, semaphores:
		all = pairs(p, kind)
	case barriers:
		all = meetings(p)
	default:
		first(p, func(s *program.Step) {
			switch {
			case kind == nops && s.Op.Kind == spec.Nop:
				all = append(all, removal{kind, []cut{{s.Site, whole}}})
			case kind == flushes && s.Op.Kind == spec.Flush:
				for i := range s.Op.Channels {
					all = append(all, removal{kind, []cut{{s.Site, i}}})
				}
			case kind == flushes && s.Op.Kind == spec.PutWithSignalAndFlush:
				all = append(all, removal{kind, []cut{{s.Site, unflushed}}})
			}
		})
	}
	slices.SortStableFunc(all, func(a, b removal) int {
		x, y := a.cuts[0], b.cuts[0]
		return cmp.Or(x.site.Block-y.site.Block, x.site.Op-y.site.Op, x.site.Inner-y.site.Inner, x.entry-y.entry)
	})
	return all
}

// first visits each operation of a plan once, those in pipelines in the first window.
func first(p *program.Program, visit func(*program.Step)) {
	for b := range p.Blocks {
		for i := range p.Blocks[b].Steps {
			if s := &p.Blocks[b].Steps[i]; s.Iteration == 0 {
				visit(s)
			}
		}
	}
}

// pairs is each signal with the wait that takes it, or each release with its acquire.
func pairs(p *program.Program, kind sort) (all []removal) {
	n := len(p.Ends) + len(p.Semaphores)
	given, taken := make([][]cut, n), make([][]cut, n)
	first(p, func(s *program.Step) {
		if s.Op.Kind == spec.PutWithSignalAndFlush {
			return // a put that flushes is none without the signal
		}
		for i, c := range s.Counters {
			if to := p.Signalled(s, c); to >= 0 {
				given[to] = append(given[to], cut{s.Site, i})
			}
			if from := p.Awaited(s, c); from >= 0 {
				taken[from] = append(taken[from], cut{s.Site, i})
			}
		}
	})
	for c := range n {
		before := 0 // what a launch may take of the launch before
		if c >= len(p.Ends) {
			before = p.Semaphores[c-len(p.Ends)]
		}
		if (kind == semaphores) != (c >= len(p.Ends)) || len(given[c]) != len(taken[c]) {
			continue
		}
		for i, from := range given[c] {
			all = append(all, removal{kind, []cut{from, taken[c][(i+before)%len(taken[c])]}})
		}
	}
	return all
}

// meetings is every time that blocks meet at a barrier, and every block that could stay away from one.
func meetings(p *program.Program) (all []removal) {
	type barrier struct{ rank, id int }
	users := make(map[barrier][][]cut) // of each block, those of one behind those of another
	var order []barrier
	first(p, func(s *program.Step) {
		if s.Op.Kind != spec.Barrier {
			return
		}
		key := barrier{s.Site.Rank, s.Op.Barrier}
		blocks := users[key]
		if blocks == nil {
			order = append(order, key)
		}
		if n := len(blocks); n == 0 || blocks[n-1][0].site.Block != s.Site.Block {
			blocks = append(blocks, nil)
		}
		n := len(blocks) - 1
		blocks[n] = append(blocks[n], cut{s.Site, whole})
		users[key] = blocks
	})
	for _, key := range order {
		blocks := users[key]
		for turn := range blocks[0] {
			r := removal{kind: barriers}
			for _, cuts := range blocks {
				if turn < len(cuts) {
					r.cuts = append(r.cuts, cuts[turn])
				}
			}
			all = append(all, r)
		}
		for i := 0; i < len(blocks) && len(blocks) > 2; i++ {
			r := removal{barriers, slices.Clone(blocks[i])}
			for k, cuts := range blocks {
				for _, c := range cuts {
					if k != i {
						r.cuts = append(r.cuts, cut{c.site, smaller})
					}
				}
			}
			all = append(all, r)
		}
	}
	return all
}

// without is a plan without some of its synchronisation.
func without(f *spec.File, all []removal, chosen []int) *spec.File {
	cuts := make(map[spec.Site][]int)
	for _, i := range chosen {
		for _, c := range all[i].cuts {
			cuts[c.site] = append(cuts[c.site], c.entry)
		}
	}
	return edited(f, func(site spec.Site, op spec.Op) []spec.Op {
		if entries := cuts[site]; entries != nil {
			return trimmed(op, entries)
		}
		return []spec.Op{op}
	})
}

// edited is a plan in which each operation is others. A pipeline of none is left out.
func edited(f *spec.File, edit func(spec.Site, spec.Op) []spec.Op) *spec.File {
	to := *f
	to.Ranks = slices.Clone(f.Ranks)
	for r := range to.Ranks {
		rank := &to.Ranks[r]
		rank.Blocks = slices.Clone(rank.Blocks)
		for b := range rank.Blocks {
			var ops []spec.Op
			for i, op := range rank.Blocks[b].Ops {
				if op.Kind != spec.Pipeline {
					ops = append(ops, edit(spec.Site{Rank: r, Block: b, Op: i, Inner: -1}, op)...)
					continue
				}
				var inner []spec.Op
				for k, o := range op.Ops {
					inner = append(inner, edit(spec.Site{Rank: r, Block: b, Op: i, Inner: k}, o)...)
				}
				if op.Ops = inner; inner != nil {
					ops = append(ops, op)
				}
			}
			rank.Blocks[b].Ops = ops
		}
	}
	return &to
}

// trimmed is an operation without some of its entries.
func trimmed(op spec.Op, entries []int) []spec.Op {
	switch {
	case op.Kind == spec.Barrier:
		if op.Blocks -= len(entries); slices.Contains(entries, whole) || op.Blocks < 2 {
			return []spec.Op{{Kind: spec.Nop}}
		}
		return []spec.Op{op}
	case slices.Contains(entries, whole):
		return nil
	case slices.Contains(entries, unflushed):
		op.Kind = spec.PutWithSignal
		return []spec.Op{op}
	case op.Kind == spec.PutWithSignal:
		silent := op
		silent.Kind = spec.Put
		silent.Src, silent.Dst, silent.Channels = chosen(op.Src, entries, true), chosen(op.Dst, entries, true),
			chosen(op.Channels, entries, true)
		op.Src, op.Dst, op.Channels = chosen(op.Src, entries, false), chosen(op.Dst, entries, false),
			chosen(op.Channels, entries, false)
		if op.Channels == nil {
			return []spec.Op{silent}
		}
		return []spec.Op{silent, op}
	}
	op.Channels, op.Semaphores = chosen(op.Channels, entries, false), chosen(op.Semaphores, entries, false)
	if op.Channels == nil && op.Semaphores == nil {
		return nil
	}
	return []spec.Op{op}
}

// chosen is what a list has at some positions, or at the others.
func chosen[T any](list []T, at []int, in bool) (kept []T) {
	for i, x := range list {
		if slices.Contains(at, i) == in {
			kept = append(kept, x)
		}
	}
	return kept
}

package plan

import (
	"fmt"

	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// Build gives the file, or the first misuse with the file and line where it was written. A plan that it gives may
// still be wrong; [Verify] says so.
func (p *Plan) Build() (*File, error) {
	lines := make(map[spec.Site]line)
	f := *p.file
	f.Ranks = nil
	for _, r := range p.ranks {
		f.Ranks = append(f.Ranks, r.build(lines))
	}
	if err := p.first(f.Faults(), lines); err != nil {
		return nil, err
	}
	if p.options.Explicit {
		return &f, nil
	}
	return lowering.Fix(lowering.Fuse(&f)), nil
}

// first is of a misuse and of the rules that operations break what was written first.
func (p *Plan) first(faults []*spec.Error, lines map[spec.Site]line) error {
	var first *spec.Error
	for _, fault := range faults {
		l, known := lines[fault.Site]
		if known && (p.err == nil || l.number <= p.before) && (first == nil || l.number < lines[first.Site].number) {
			first = fault
		}
	}
	switch {
	case first != nil:
		return fmt.Errorf("plan: %s: %w", lines[first.Site].at, first)
	case p.err != nil:
		return p.err
	case len(faults) > 0:
		return faults[0]
	}
	return nil
}

func (r *Rank) build(lines map[spec.Site]line) spec.Rank {
	out := spec.Rank{
		Input: r.plan.collective.input(r.id), Output: r.plan.collective.out, Scratch: r.scratch,
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

func (b *program) build(site spec.Site, lines map[spec.Site]line) []spec.Op {
	ops := make([]spec.Op, 0, len(b.ops))
	for i, r := range b.ops {
		site.Op, site.Inner = i, -1
		lines[site] = r.line
		if r.Kind == spec.Pipeline {
			r.Ops = make([]spec.Op, 0, len(r.inner))
			for k, o := range r.inner {
				site.Inner = k
				lines[site] = o.line
				r.Ops = append(r.Ops, o.Op)
			}
		}
		ops = append(ops, r.Op)
	}
	return ops
}

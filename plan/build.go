package plan

import (
	"errors"
	"fmt"

	"github.com/weftgo/weft/plan/lowering"
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
	if p.options.Explicit {
		return &f, nil
	}
	return lowering.Fix(lowering.Fuse(&f)), nil
}

func (r *Rank) build(lines map[spec.Site]string) spec.Rank {
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

func (b *program) build(site spec.Site, lines map[spec.Site]string) []spec.Op {
	ops := make([]spec.Op, 0, len(b.ops))
	for i, r := range b.ops {
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

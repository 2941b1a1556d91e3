package lowering

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// Replicate is n instances of a plan side by side. Chunks are n times as many, so messages are multiples of n times the
// bytes.
func Replicate(f *spec.File, n int) *spec.File {
	to := *f
	to.Ranks = nil
	for i := range f.Ranks {
		to.Ranks = append(to.Ranks, *replicate(&f.Ranks[i], n))
	}
	return &to
}

// replicate is n instances of a rank's program side by side. What had number v has numbers v*n to v*n+n-1. A range
// of chunks is n times as many, and each instance has a part of it.
func replicate(r *spec.Rank, n int) *spec.Rank {
	to := &spec.Rank{
		Input: r.Input * n, Output: r.Output * n, Scratch: r.Scratch * n,
		Remotes: r.Remotes, Semaphores: each(r.Semaphores, n), Switches: each(r.Switches, n),
	}
	for _, c := range r.Channels {
		to.Channels = append(to.Channels, spec.Channels{Type: c.Type, Peers: each(c.Peers, n)})
	}
	for _, b := range r.Blocks {
		for i := range n {
			block := spec.Block{Ops: shifted(b.Ops, n, i), Remotes: b.Remotes}
			for _, u := range b.Channels {
				block.Channels = append(block.Channels, spec.Uses{Type: u.Type, IDs: numbers(u.IDs, n, i)})
			}
			to.Blocks = append(to.Blocks, block)
		}
	}
	return to
}

// each is every element n times in a row.
func each[T any](of []T, n int) (all []T) {
	for _, e := range of {
		all = append(all, slices.Repeat([]T{e}, n)...)
	}
	return all
}

// numbers are those that an instance has.
func numbers(ids []int, n, i int) []int {
	all := slices.Clone(ids)
	for k := range all {
		all[k] = all[k]*n + i
	}
	return all
}

// shifted is the operations of an instance. Channels and remote buffers have the numbers that they had, for those
// are the block's own.
func shifted(ops []spec.Op, n, i int) []spec.Op {
	all := slices.Clone(ops)
	for k := range all {
		o := &all[k]
		o.Src, o.Dst = ranges(o.Src, n, i), ranges(o.Dst, n, i)
		o.Semaphores = numbers(o.Semaphores, n, i)
		if o.Kind == spec.Barrier {
			o.Barrier = o.Barrier*n + i
		}
		if o.Kind == spec.Pipeline {
			o.Ops = shifted(o.Ops, n, i)
		}
	}
	return all
}

func ranges(places []spec.Place, n, i int) []spec.Place {
	all := slices.Clone(places)
	for k := range all {
		all[k].Index = all[k].Index*n + i*all[k].Size
	}
	return all
}

package collective

import (
	"context"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
)

// Kind is a collective that can be measured.
type Kind struct {
	Name       string // of the command, and in rows
	Collective collective.Collective

	inParts, outParts bool // the operand has a part for each rank
	// bus is the bus bandwidth of nccl-tests over the bytes a second of the whole operation, and wire
	// the bytes that leave a rank, in the mean and at least, over the bytes of the operation.
	bus, wire func(n float64) float64
	run       func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error
}

// Kinds are all collectives that can be measured.
var Kinds = []Kind{
	{
		"allreduce", collective.AllReduce, false, false, twice, twice,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.AllReduce(ctx, s, c.Out, c.In, c.Op)
		},
	},
	{
		"allgather", collective.AllGather, false, true, others, others,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.AllGather(ctx, s, c.Out, c.In)
		},
	},
	{
		"reducescatter", collective.ReduceScatter, true, false, others, others,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.ReduceScatter(ctx, s, c.Out, c.In, c.Op)
		},
	},
	{
		"alltoall", collective.AllToAll, true, true, others, others,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.AllToAll(ctx, s, c.Out, c.In)
		},
	},
	{"broadcast", collective.Broadcast, false, false, whole, others, do},
	{
		"reduce", collective.Reduce, false, false, whole, others,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.Reduce(ctx, s, c.Out, c.In, c.Op, c.Root)
		},
	},
	{
		"gather", collective.Gather, false, true, others, shared,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.Gather(ctx, s, c.Out, c.In, c.Root)
		},
	},
	{
		"scatter", collective.Scatter, true, false, others, shared,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
			return g.Scatter(ctx, s, c.Out, c.In, c.Root)
		},
	},
	{"sendrecv", collective.PointToPoint, false, false, whole, whole, do}, // to the next rank, from the one before
	{
		"barrier", collective.Barrier, false, false, whole, whole,
		func(ctx context.Context, g *collective.Group, s *weft.Stream, _ *collective.Call) error {
			return g.Barrier(ctx, s)
		},
	},
}

func whole(float64) float64    { return 1 }
func others(n float64) float64 { return (n - 1) / n }
func twice(n float64) float64  { return 2 * (n - 1) / n }
func shared(n float64) float64 { return (n - 1) / n / n }

// do is for calls that no method of a group makes: a broadcast to other memory, a pre-multiplied sum, and
// messages that are sent and received together.
func do(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
	return g.Do(ctx, s, *c)
}

// Named is the kind with a name, or nil.
func Named(name string) *Kind {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &Kinds[i]
}

// Algorithms lists those of the kind on GPUs or on the host.
func (k *Kind) Algorithms(gpu bool) []string {
	all := collective.Algorithms()
	if gpu {
		all = collective.GPUAlgorithms()
	}
	return names(all, k.Collective, spec.Plain)
}

// NormAlgorithms lists those of all-reduces with norms.
func NormAlgorithms() []string {
	return names(collective.GPUAlgorithms(), collective.AllReduce, spec.WithNorm)
}

func names(all []collective.Algorithm, k collective.Collective, v spec.Variant) (list []string) {
	for _, a := range all {
		if a.Collective == k && a.Variant == v {
			list = append(list, a.Name)
		}
	}
	return list
}

// On reports whether the kind can be measured on GPUs or on the host. Messages have no algorithms.
func (k *Kind) On(gpu bool) bool {
	return len(k.Algorithms(gpu)) > 0 || k.Collective == collective.PointToPoint
}

// count is how many elements a part of an operation of at most so many bytes has: one, at least.
func (k *Kind) count(bytes int64, size, ranks int) int {
	if k.Collective == collective.Barrier {
		return 0
	}
	if k.inParts || k.outParts {
		size *= ranks
	}
	return max(1, int(bytes)/size)
}

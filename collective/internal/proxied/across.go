package proxied

import (
	"context"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
)

// startAcross enqueues an all-reduce of which each host's kernels do their part: a reduce-scatter of the host's
// ranks, of as many chunks as ranks take part of each host; a hand-over, in which the ranks of the same number on all
// hosts fold what they have of a chunk; and an all-gather of the chunks.
func (e *Engine) startAcross(ctx context.Context, stream *cuda.Stream, x *errand, ranks int) error {
	c, rank, size := &x.call, e.comm.Rank(), e.comm.Size()
	counts, at := make([]int, size), make([]int, size)
	z := c.DType.Size()
	local := slices.DeleteFunc(slices.Clone(e.live), func(r int) bool { return e.comm.Host(r) != e.comm.Host(rank) })
	for j, r := range local[:ranks] {
		from, to := chunkOf(j, ranks, c.Bytes)
		counts[r], at[r] = (to-from)/z, from/z
		x.most = max(x.most, to-from)
	}
	part := weft.DeviceTensor(c.Out.Pointer().Add(at[rank]*z), c.DType, counts[rank])
	fold := spec.Call{
		Collective: spec.ReduceScatterV, In: c.In, Out: part, Op: c.Op, Scalar: c.Scalar, ScalarOnDevice: c.ScalarOnDevice,
		Counts: spec.Counts{Send: counts, SendAt: at}, Algorithm: "reduce-scatter-v/flagged",
	}
	if fold.Op == weft.Avg { // the sum of all is divided
		fold.Op = weft.Sum
	}
	gather := spec.Call{
		Collective: spec.AllGatherV, In: part, Out: c.Out, Counts: spec.Counts{Recv: counts, RecvAt: at},
		Algorithm: "all-gather-v/flagged",
	}
	if err := e.within(ctx, stream, &fold); err != nil {
		return err
	}
	whole := c.Fingerprint()
	c.In, c.Out, c.Whole = part, part, whole
	if err := c.Check(rank, size); err != nil {
		return err
	}
	if err := e.proxy.Start(stream, numberOf(c), c.Name(), x.run); err != nil {
		return err
	}
	return e.within(ctx, stream, &gather)
}

// within enqueues a call of this host's ranks.
func (e *Engine) within(ctx context.Context, stream *cuda.Stream, c *spec.Call) error {
	if err := c.Check(e.comm.Rank(), e.comm.Size()); err != nil {
		return err
	}
	_, err := e.near.Run(ctx, weft.StreamOf(stream), c, nil)
	return err
}

// across folds a chunk between hosts, piece by piece.
func (x *errand) across(c *spec.Call) error {
	p := cut(c, x.comm.Rank(), x.comm.Size(), x.area)
	p.count = (x.most + p.step - 1) / p.step
	done := 0
	return x.inPieces(c, p, func(piece *spec.Call) error {
		if err := x.host.Begin(c.Name()); err != nil {
			return err
		}
		most := min(p.step, x.most-done)
		done += most
		return x.host.Across(context.Background(), piece, most)
	})
}

// chunkOf is the i-th of so many chunks of n bytes, which are cut at lines.
func chunkOf(i, chunks, n int) (from, to int) {
	size := up((n + chunks - 1) / chunks)
	return min(i*size, n), min((i+1)*size, n)
}

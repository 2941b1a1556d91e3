package collective

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// The collectives.
const (
	Barrier        = spec.Barrier
	AllReduce      = spec.AllReduce
	AllGather      = spec.AllGather
	AllGatherV     = spec.AllGatherV
	ReduceScatter  = spec.ReduceScatter
	ReduceScatterV = spec.ReduceScatterV
	AllToAll       = spec.AllToAll
	AllToAllV      = spec.AllToAllV
	Broadcast      = spec.Broadcast
	Reduce         = spec.Reduce
	Gather         = spec.Gather
	Scatter        = spec.Scatter
)

// Where operands lie.
const (
	Inputs  = spec.Inputs
	Outputs = spec.Outputs
	InPlace = spec.InPlace
)

// Do runs a call: the method of its collective with all that the call says.
func (g *Group) Do(ctx context.Context, s *weft.Stream, c Call) error {
	g.call = c
	return g.run(ctx, s)
}

// Barrier returns when every rank has entered it; on GPUs its kernel ends when that of every rank has
// begun.
func (g *Group) Barrier(ctx context.Context, s *weft.Stream) error {
	g.begin(spec.Barrier)
	return g.run(ctx, s)
}

// AllReduce reduces the inputs of all ranks elementwise, in rank order, and gives every rank the
// result. Inputs and outputs have the same type and number of elements on all ranks, any number, of
// any alignment; shapes play no part. out may be the same memory as in, on any of the ranks, but
// must not otherwise overlap it. All ranks get the same bits, in every run, by every algorithm and
// engine.
//
// BF16, FP16 and fp8 sum in fp32 and round once; F32 and F64 sum in their own type; integers wrap.
// Min and Max order -0 below +0 and give NaN if any input is NaN. Avg divides the sum by the number
// of ranks before the one rounding; integers truncate toward zero. A pre-multiplied sum needs a
// scalar: see [Group.Do] and [Call].
func (g *Group) AllReduce(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op) error {
	c := g.begin(spec.AllReduce)
	c.Out, c.In, c.Op = out, in, op
	return g.run(ctx, s)
}

// ReduceScatter reduces as AllReduce, and gives every rank its part of the result: in holds a part for
// each rank of the communicator, rank r's at r*len(out). out may be this rank's part of in, but must
// not otherwise overlap it.
func (g *Group) ReduceScatter(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op) error {
	c := g.begin(spec.ReduceScatter)
	c.Out, c.In, c.Op = out, in, op
	return g.run(ctx, s)
}

// ReduceScatterV is ReduceScatter with parts of so many elements, the same counts on all ranks. They
// lie one after the other.
func (g *Group) ReduceScatterV(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts []int, op weft.Op,
) error {
	c := g.begin(spec.ReduceScatterV)
	c.Out, c.In, c.Op, c.Counts.Send = out, in, op, counts
	return g.run(ctx, s)
}

// Reduce is AllReduce whose result root alone gets; other ranks' out is not looked at.
func (g *Group) Reduce(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op, root int) error {
	c := g.begin(spec.Reduce)
	c.Out, c.In, c.Op, c.Root = out, in, op, root
	return g.run(ctx, s)
}

// AllGather gives every rank the inputs of all of them: out holds size of the communicator times
// the elements of in, rank r's at r*len(in). Inputs have the same type and number of elements on
// all ranks. in may be this rank's part of out, but must not otherwise overlap out.
func (g *Group) AllGather(ctx context.Context, s *weft.Stream, out, in weft.Tensor) error {
	c := g.begin(spec.AllGather)
	c.Out, c.In = out, in
	return g.run(ctx, s)
}

// AllGatherV is AllGather of inputs of counts[r] elements, which go to at[r] in out; without at they
// lie one after the other. Counts and positions are the same on all ranks.
func (g *Group) AllGatherV(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts, at []int) error {
	c := g.begin(spec.AllGatherV)
	c.Out, c.In, c.Counts.Recv, c.Counts.RecvAt = out, in, counts, at
	return g.run(ctx, s)
}

// AllToAll gives every rank its part of all inputs: in holds a part for each rank of the communicator,
// and out gets one of each, in rank order. out may be the same memory as in, but must not otherwise
// overlap it.
func (g *Group) AllToAll(ctx context.Context, s *weft.Stream, out, in weft.Tensor) error {
	c := g.begin(spec.AllToAll)
	c.Out, c.In = out, in
	return g.run(ctx, s)
}

// AllToAllV is AllToAll with parts of different lengths: what counts say that a rank sends to a peer is
// what that peer's say that it receives. out must not overlap in.
func (g *Group) AllToAllV(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts Counts) error {
	c := g.begin(spec.AllToAllV)
	c.Out, c.In, c.Counts = out, in, counts
	return g.run(ctx, s)
}

// AllToAllVDevice is AllToAllV with counts in the GPU's memory, where the kernel reads them when it runs: a
// graph may be replayed with others. Parts that do not fit the operands, and counts that are not the
// peer's, fail the communicator on both ranks with [weft.ErrMismatch].
func (g *Group) AllToAllVDevice(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts DeviceCounts) error {
	g.call = Call{Collective: spec.AllToAllV, Out: out, In: in, DeviceCounts: counts}
	return g.run(ctx, s)
}

// Broadcast gives every rank the contents of root's tensor. Tensors have the same type and number
// of elements on all ranks.
func (g *Group) Broadcast(ctx context.Context, s *weft.Stream, t weft.Tensor, root int) error {
	c := g.begin(spec.Broadcast)
	c.Out, c.In, c.Root = t, t, root
	return g.run(ctx, s)
}

// Gather gives root the inputs of all ranks, as AllGather; other ranks' out is not looked at.
func (g *Group) Gather(ctx context.Context, s *weft.Stream, out, in weft.Tensor, root int) error {
	c := g.begin(spec.Gather)
	c.Out, c.In, c.Root = out, in, root
	return g.run(ctx, s)
}

// Scatter gives every rank its part of root's input, rank r's at r*len(out); other ranks' in is not
// looked at.
func (g *Group) Scatter(ctx context.Context, s *weft.Stream, out, in weft.Tensor, root int) error {
	c := g.begin(spec.Scatter)
	c.Out, c.In, c.Root = out, in, root
	return g.run(ctx, s)
}

// begin clears the group's call, which is too large to be copied in every operation.
func (g *Group) begin(k Collective) *Call {
	g.call = Call{}
	g.call.Collective = k
	return &g.call
}

// run runs the group's call.
func (g *Group) run(ctx context.Context, s *weft.Stream) error {
	c := &g.call
	op := c.Collective.String()
	if g.closed {
		return fmt.Errorf("%s: group %w", op, weft.ErrClosed)
	}
	if err := g.engine.Begin(op); err != nil {
		return err
	}
	err := c.Check(g.comm.Rank(), g.comm.Size())
	if err == nil && c.Collective.Rooted() && g.comm.Masked(c.Root) {
		err = fmt.Errorf("%s: %w: root %d is %w", op, weft.ErrInvalid, c.Root, weft.ErrMasked)
	}
	_, err = g.engine.Run(ctx, s, c, err)
	return err
}

package collective

import (
	"cmp"
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

// What an algorithm takes of operands that are in place.
const (
	AnyPlace    = spec.AnyPlace
	OnlyInPlace = spec.OnlyInPlace
	OnlyApart   = spec.OnlyApart
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
	if c.Norm != nil {
		g.norm = *c.Norm
		g.call.Norm = &g.norm
	}
	return g.run(ctx, s, &g.call)
}

// Barrier returns when every rank has entered it; on GPUs its kernel ends when that of every rank has
// begun.
func (g *Group) Barrier(ctx context.Context, s *weft.Stream) error {
	return g.run(ctx, s, g.begin(spec.Barrier))
}

// AllReduce reduces the inputs of all ranks elementwise, in rank order, and gives every rank the
// result. Inputs and outputs have the same type and number of elements on all ranks, any number, of
// any alignment; shapes play no part. out may be the same memory as in, on any of the ranks, but
// must not otherwise overlap it. All ranks get the same bits, in every run, by every algorithm and
// engine.
//
// BF16, FP16 and fp8 sum in fp32 and round once; F32 and F64 sum in their own type; integers wrap. Between hosts floats
// are summed host by host: the package's documentation says how.
// Min and Max order -0 below +0 and give NaN if any input is NaN. Avg divides the sum by the number
// of ranks before the one rounding; integers truncate toward zero. A pre-multiplied sum needs a
// scalar: see [Group.Do] and [Call].
func (g *Group) AllReduce(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op) error {
	c := g.begin(spec.AllReduce)
	c.Out, c.In, c.Op = out, in, op
	return g.run(ctx, s, c)
}

// ReduceScatter reduces as AllReduce, and gives every rank its part of the result: in holds a part for
// each rank of the communicator, rank r's at r*len(out). out may be this rank's part of in, but must
// not otherwise overlap it.
func (g *Group) ReduceScatter(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op) error {
	c := g.begin(spec.ReduceScatter)
	c.Out, c.In, c.Op = out, in, op
	return g.run(ctx, s, c)
}

// ReduceScatterV is ReduceScatter with parts of so many elements, the same counts on all ranks. They
// lie one after the other.
func (g *Group) ReduceScatterV(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts []int, op weft.Op,
) error {
	c := g.begin(spec.ReduceScatterV)
	c.Out, c.In, c.Op, c.Counts.Send = out, in, op, counts
	return g.run(ctx, s, c)
}

// Reduce is AllReduce whose result root alone gets; other ranks' out is not looked at.
func (g *Group) Reduce(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op, root int) error {
	c := g.begin(spec.Reduce)
	c.Out, c.In, c.Op, c.Root = out, in, op, root
	return g.run(ctx, s, c)
}

// AllGather gives every rank the inputs of all of them: out holds size of the communicator times
// the elements of in, rank r's at r*len(in). Inputs have the same type and number of elements on
// all ranks. in may be this rank's part of out, but must not otherwise overlap out.
func (g *Group) AllGather(ctx context.Context, s *weft.Stream, out, in weft.Tensor) error {
	c := g.begin(spec.AllGather)
	c.Out, c.In = out, in
	return g.run(ctx, s, c)
}

// AllGatherV is AllGather of inputs of counts[r] elements, which go to at[r] in out; without at they
// lie one after the other. Counts and positions are the same on all ranks.
func (g *Group) AllGatherV(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts, at []int) error {
	c := g.begin(spec.AllGatherV)
	c.Out, c.In, c.Counts.Recv, c.Counts.RecvAt = out, in, counts, at
	return g.run(ctx, s, c)
}

// AllToAll gives every rank its part of all inputs: in holds a part for each rank of the communicator,
// and out gets one of each, in rank order. out may be the same memory as in, but must not otherwise
// overlap it.
func (g *Group) AllToAll(ctx context.Context, s *weft.Stream, out, in weft.Tensor) error {
	c := g.begin(spec.AllToAll)
	c.Out, c.In = out, in
	return g.run(ctx, s, c)
}

// AllToAllV is AllToAll with parts of different lengths: what counts say that a rank sends to a peer is
// what that peer's say that it receives. On the host every rank returns [weft.ErrMismatch] if it is not,
// with nothing moved. out must not overlap in.
func (g *Group) AllToAllV(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts Counts) error {
	c := g.begin(spec.AllToAllV)
	c.Out, c.In, c.Counts = out, in, counts
	return g.run(ctx, s, c)
}

// AllToAllVDevice is AllToAllV with counts in the GPU's memory, where the kernel reads them when it runs: a
// graph may be replayed with others. Parts that do not fit the operands, and counts that are not the
// peer's, fail the communicator on both ranks with [weft.ErrMismatch].
func (g *Group) AllToAllVDevice(ctx context.Context, s *weft.Stream, out, in weft.Tensor, counts DeviceCounts) error {
	c := g.begin(spec.AllToAllV)
	c.Out, c.In, c.DeviceCounts = out, in, counts
	return g.run(ctx, s, c)
}

// Broadcast gives every rank the contents of root's tensor. Tensors have the same type and number
// of elements on all ranks.
func (g *Group) Broadcast(ctx context.Context, s *weft.Stream, t weft.Tensor, root int) error {
	c := g.begin(spec.Broadcast)
	c.Out, c.In, c.Root = t, t, root
	return g.run(ctx, s, c)
}

// Gather gives root the inputs of all ranks, as AllGather; other ranks' out is not looked at.
func (g *Group) Gather(ctx context.Context, s *weft.Stream, out, in weft.Tensor, root int) error {
	c := g.begin(spec.Gather)
	c.Out, c.In, c.Root = out, in, root
	return g.run(ctx, s, c)
}

// Scatter gives every rank its part of root's input, rank r's at r*len(out); other ranks' in is not
// looked at.
func (g *Group) Scatter(ctx context.Context, s *weft.Stream, out, in weft.Tensor, root int) error {
	c := g.begin(spec.Scatter)
	c.Out, c.In, c.Root = out, in, root
	return g.run(ctx, s, c)
}

// Algorithm names the algorithm of the group's last call, but for those that were started: their [Work]
// does. It is empty before the first call, and after one that was refused. The communicator's logger gets a line
// about the first call by each algorithm.
func (g *Group) Algorithm() string { return g.algorithm }

// begin clears the group's call, which is too large to be copied in every operation.
func (g *Group) begin(k Collective) *Call {
	g.call = Call{}
	g.call.Collective = k
	return &g.call
}

// run runs a call of the group's own memory, which needs no allocation.
func (g *Group) run(ctx context.Context, s *weft.Stream, c *Call) (err error) {
	if err := g.gate.Enter(c.Name()); err != nil {
		return err
	}
	defer g.gate.Leave()
	if err := g.queue.await(ctx); err != nil {
		return g.comm.Operations().Fail(fmt.Errorf("%s: still waiting for calls that were started before: %w",
			c.Name(), err))
	}
	if g.works.oldest() != nil {
		stream := cmp.Or(s.CUDA(), g.works.own.CUDA())
		if err := g.works.settle(stream); err != nil {
			return fmt.Errorf("%s: %w", c.Name(), err)
		}
	}
	g.algorithm, err = g.perform(ctx, s, c, g.check(c))
	return err
}

// perform runs a call in its turn, with an error of this rank's arguments if there is one, and names the
// algorithm. The first call by each algorithm is logged: a line for every call would take longer than many do.
func (g *Group) perform(ctx context.Context, s *weft.Stream, c *Call, refused error) (algorithm string, err error) {
	if err := g.engine.Begin(c.Name()); err != nil {
		return "", err
	}
	if c.Collective == spec.PointToPoint {
		return "", g.engine.Exchange(ctx, s, c, refused)
	}
	if refused == nil && g.selector != nil && c.Algorithm == "" {
		c.Algorithm, refused = g.selected(c)
	}
	algorithm, err = g.engine.Run(ctx, s, c, refused)
	if g.logged != nil && err == nil && algorithm != "" && !g.logged[algorithm] {
		g.logged[algorithm] = true
		g.comm.Operations().Logger().Info("algorithm", "op", c.Name(), "name", algorithm, "bytes", c.Bytes)
	}
	return algorithm, err
}

// check says what is wrong with a call.
func (g *Group) check(c *Call) error {
	if err := c.Check(g.comm.Rank(), g.ranks); err != nil {
		return err
	}
	if c.Collective.Rooted() && g.comm.Masked(c.Root) {
		return fmt.Errorf("%s: %w: root %d is %w", c.Name(), weft.ErrInvalid, c.Root, weft.ErrMasked)
	}
	if c.Collective == spec.PointToPoint {
		for i := range c.Transfers {
			if peer := c.Transfers[i].Peer; g.comm.Masked(peer) {
				return fmt.Errorf("%s: %w: rank %d is %w", c.Name(), weft.ErrInvalid, peer, weft.ErrMasked)
			}
		}
	}
	return nil
}

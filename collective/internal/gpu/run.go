package gpu

import (
	"cmp"
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// Begin implements [spec.Engine].
func (e *Engine) Begin(op string) error { return e.comm.Operations().Begin(op) }

// Algorithms implements [spec.Engine].
func (e *Engine) Algorithms() []spec.Algorithm {
	all := make([]spec.Algorithm, len(e.algorithms))
	for i, a := range e.algorithms {
		all[i] = a.Algorithm
	}
	return all
}

// Run implements [spec.Engine]. Ranks do not meet before they enqueue, so what is wrong with the
// arguments of one rank is returned there alone, unless calls are checked.
func (e *Engine) Run(ctx context.Context, s *weft.Stream, c *spec.Call, refused error) (string, error) {
	var a *algorithm
	if refused == nil {
		a, refused = e.accept(s, c)
	}
	if err := e.agree(ctx, s, c, a, refused); err != nil {
		return "", err
	}
	if o := e.ownOf(a); o != nil {
		return a.Name, o.run(ctx, s, c)
	}
	if r := e.runners[a]; r != nil {
		return a.Name, r.Run(ctx, s, c)
	}
	if e.most = e.blocks; c.Blocks > 0 {
		e.most = min(e.most, c.Blocks)
	}
	name := c.Name()
	stream, err := e.Enter(ctx, name, s)
	if err != nil {
		return a.Name, err
	}
	switch {
	case c.Norm != nil:
		err = e.prepareNorm(ctx, c.DType)
	case c.Words.Given():
		err = e.prepareWords(ctx, c)
	case c.Collective.Reduces():
		err = e.prepareFor(ctx, name, a, c.DType)
	}
	if err != nil {
		return a.Name, err
	}
	if err := a.start(e, stream, c); err != nil {
		return a.Name, err
	}
	return a.Name, e.Finish(ctx, s)
}

// accept chooses the algorithm of a call, or says why this rank cannot make the call.
func (e *Engine) accept(s *weft.Stream, c *spec.Call) (*algorithm, error) {
	if err := cmp.Or(e.aligned(c), e.checkNorm(c), e.checkWords(c)); err != nil {
		return nil, err
	}
	a, err := e.choose(c)
	if err != nil {
		return nil, err
	}
	return a, e.refuses(s, c, a)
}

// refuses says why a call that an algorithm fits cannot be one of it.
func (e *Engine) refuses(s *weft.Stream, c *spec.Call, a *algorithm) error {
	if o := e.ownOf(a); o != nil {
		return o.refuses(s, c)
	}
	if e.runners[a] != nil && c.Blocks != 0 {
		return weft.Unsupportedf("%v: %s has as many blocks as it was written with; leave Blocks out", c.Collective, a.Name)
	}
	if c.Threads != 0 || len(c.Extras) > 0 {
		return weft.Unsupportedf("%v: %s takes neither threads nor extras, as users' algorithms do; name one of those",
			c.Collective, a.Name)
	}
	if a.Needs != 0 {
		return symmetric(c)
	}
	return nil
}

// agree has ranks compare their calls and the algorithms that they have chosen, if they are checked. A capture is
// not: other ranks may be replaying a graph of the same operation.
func (e *Engine) agree(ctx context.Context, s *weft.Stream, c *spec.Call, a *algorithm, refused error) error {
	if !e.check {
		return refused
	}
	capturing, err := enginegpu.Capturing(e.lane.Stream(s))
	if capturing && err == nil {
		return refused
	}
	chosen := ""
	if a != nil {
		chosen = a.Name
	}
	return spec.Agree(ctx, e.comm, c, chosen, cmp.Or(refused, err))
}

// aligned refuses operands whose elements are not aligned, as C demands of memory that has them.
func (e *Engine) aligned(c *spec.Call) error {
	if c.Norm != nil {
		return alignedNorm(c)
	}
	in, out := e.addresses(c)
	size := uint64(max(c.DType.Size(), 1))
	if in%size != 0 || out%size != 0 {
		return weft.Invalidf("%v: operands at %#x and %#x; the address of %v elements is a multiple of %d",
			c.Collective, in, out, c.DType, size)
	}
	if scalar := spec.ScalarType(c.DType); c.Op == weft.PreMulSum && c.ScalarOnDevice &&
		int(c.Scalar.Pointer())%scalar.Size() != 0 {
		return weft.Invalidf("%v: a scalar of %v at %#x; its address is a multiple of %d", c.Collective, scalar,
			uint64(c.Scalar.Pointer()), scalar.Size())
	}
	return nil
}

func alignedNorm(c *spec.Call) error {
	n := c.Norm
	for _, t := range [...]*weft.Tensor{&c.Out, &c.In, &n.Residual, &n.ResidualOut, &n.Gamma, &n.Scales, &n.Scale} {
		if size := max(t.DType.Size(), 1); uint64(t.Pointer())%uint64(size) != 0 {
			return weft.Invalidf("%s: an operand at %#x; the address of %v elements is a multiple of %d", c.Name(),
				uint64(t.Pointer()), t.DType, size)
		}
	}
	return nil
}

func (e *Engine) startBarrier(stream *cuda.Stream, _ *spec.Call) error { return e.Barrier(stream) }

func (e *Engine) startOneShot(stream *cuda.Stream, c *spec.Call) error {
	r := e.reduction(c)
	return e.oneShot(stream, &r)
}

func (e *Engine) startTwoShot(stream *cuda.Stream, c *spec.Call) error {
	r := e.reduction(c)
	return e.twoShot(stream, &r)
}

func (e *Engine) startReduceParts(stream *cuda.Stream, c *spec.Call) error {
	r := e.reduction(c)
	if c.Collective == spec.Reduce {
		return e.Reduce(stream, &r, c.Root)
	}
	return e.ReduceScatter(stream, &r)
}

func (e *Engine) startMove(stream *cuda.Stream, c *spec.Call) error {
	in, out := e.addresses(c)
	t := Transfer{Out: out, In: in, Part: c.Bytes, DType: c.DType}
	switch c.Collective {
	case spec.AllGather:
		return e.AllGather(stream, t)
	case spec.AllToAll:
		return e.AllToAll(stream, t)
	case spec.Broadcast:
		return e.Broadcast(stream, t, c.Root)
	case spec.Gather:
		return e.Gather(stream, t, c.Root)
	default:
		return e.Scatter(stream, t, c.Root)
	}
}

// addresses are those of the operands that this rank has.
func (e *Engine) addresses(c *spec.Call) (in, out uint64) {
	if c.Collective.HasInput(e.comm.Rank(), c.Root) {
		in = uint64(c.In.Pointer())
	}
	if c.Collective.HasOutput(e.comm.Rank(), c.Root) {
		out = uint64(c.Out.Pointer())
	}
	return in, out
}

func (e *Engine) reduction(c *spec.Call) Reduction {
	in, out := e.addresses(c)
	r := Reduction{Out: out, In: in, Elements: c.Count, DType: c.DType, Op: c.Op}
	if c.Op == weft.PreMulSum {
		if c.ScalarOnDevice {
			r.ScalarAt = uint64(c.Scalar.Pointer())
		} else {
			r.Scalar = c.ScalarBits()
		}
	}
	return r
}

package eptest

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// Round is a batch whose operations a test enqueues as it likes, in a capture or on a stream of its
// own, and whose results it looks at when they should be there. Where the types allow, the rows
// that combine takes are those that dispatch has received.
type Round struct {
	r        *runner
	topk     weft.Tensor
	weights  weft.Tensor
	in       ep.Rows
	y, out   weft.Tensor
	bias     []weft.Tensor
	back     gradients
	received *ep.Received
	pending  *ep.PendingDispatch
	direct   bool // y is what was received
	blank    bool // what is received stands among poison
}

// gradients are the operands of both moves back.
type gradients struct {
	rows, scalars, x, home            weft.Tensor // of dispatch
	out, expertRows, y, expertWeights weft.Tensor // of combine
}

// Round begins the batch on one rank: its inputs are there. It is collective.
func (b *Batch) Round(e Engine, comm *weft.Comm, h *ep.Handle) (*Round, error) {
	r := &Round{r: &runner{trial: b.trial, engine: e, comm: comm, handle: h}}
	memory, err := e.Alloc(comm, b.trial.size, b.trial.Operand == WindowOperand)
	if err != nil {
		return nil, err
	}
	r.r.memory = memory
	if err := r.r.upload(0, filled(b.trial.size, poison)); err != nil {
		return nil, err
	}
	return r, r.Load(b)
}

// Load puts the inputs of another batch of as many tokens over those that are there.
// Nothing of the round may be on its way here.
func (r *Round) Load(b *Batch) (err error) {
	t, me := b.trial, r.r.comm.Rank()
	r.r.trial, r.r.wrong = t, nil
	r.r.off = t.layOut(&arena{}, me)
	d, _, _, _ := r.r.rowTypes(false)
	r.direct = t.Operand == ReceivedOperand && d == t.output()
	if r.topk, r.weights, err = r.r.routingOperands(); err != nil {
		return err
	}
	if r.in, err = r.r.rowOperands(0); err != nil || !t.combines() {
		return err
	}
	if r.y, err = r.r.expertRows(r.r.off.y, t.y[me], nil); err != nil {
		return err
	}
	r.bias = r.bias[:0]
	for i, b := range t.bias[me] {
		x, err := r.r.homeRows(r.r.off.bias[i], b)
		if err != nil {
			return err
		}
		r.bias = append(r.bias, x)
	}
	if r.out, err = r.r.homeRows(r.r.off.out, nil); err != nil {
		return err
	}
	return r.loadGradients()
}

func (r *Round) loadGradients() (err error) {
	t, me, g, off := r.r.trial, r.r.comm.Rank(), &r.back, &r.r.off
	if g.rows, err = r.r.expertRows(off.grad, t.grad[me], nil); err != nil {
		return err
	}
	if g.scalars, err = r.r.tensor(off.scalars, singleBytes(t.scalars[me]), weft.Float32, len(t.scalars[me])); err != nil {
		return err
	}
	if g.x, err = r.r.homeRows(off.gradX, nil); err != nil {
		return err
	}
	if g.home, err = r.r.blank(off.scalarsHome, weft.Float32, t.tokens(me), t.spec.TopK); err != nil {
		return err
	}
	if g.out, err = r.r.homeRows(off.gradOut, t.gradOut[me]); err != nil {
		return err
	}
	if g.expertRows, err = r.r.expertRows(off.gradRows, filled(len(t.y[me]), poison), nil); err != nil ||
		t.spec.Weighting != ep.Weighted {
		g.y, g.expertWeights = weft.Tensor{}, weft.Tensor{}
		return err
	}
	g.y = r.y
	g.expertWeights, err = r.r.blank(off.gradWeights, weft.Float32, t.tokens(me), t.spec.TopK)
	return err
}

// Prepare enqueues that.
func (r *Round) Prepare(ctx context.Context, s *weft.Stream) error {
	routing, err := r.r.handle.Prepare(ctx, s, r.topk, r.weights)
	if err == nil {
		r.route(routing)
	}
	return err
}

// Dispatch enqueues a dispatch by the routing that is there, and gives what an earlier one has
// received back.
func (r *Round) Dispatch(ctx context.Context, s *weft.Stream) error {
	received, err := r.r.handle.Dispatch(ctx, s, ep.DispatchArgs{Routing: r.r.routing, Rows: r.in})
	if err == nil {
		r.receive(received)
	}
	return err
}

// PrepareDispatch enqueues that.
func (r *Round) PrepareDispatch(ctx context.Context, s *weft.Stream) error {
	received, err := r.r.handle.Dispatch(ctx, s, ep.DispatchArgs{TopK: r.topk, Weights: r.weights, Rows: r.in})
	if err == nil {
		r.route(received.Routing)
		r.receive(received)
	}
	return err
}

// SendPrepareDispatch enqueues that; Pending is the rest.
func (r *Round) SendPrepareDispatch(ctx context.Context, s *weft.Stream) (err error) {
	r.pending, err = r.r.handle.SendDispatch(ctx, s, ep.DispatchArgs{TopK: r.topk, Weights: r.weights, Rows: r.in})
	return err
}

// SendDispatch enqueues that, by the routing that is there.
func (r *Round) SendDispatch(ctx context.Context, s *weft.Stream) (err error) {
	r.pending, err = r.r.handle.SendDispatch(ctx, s, ep.DispatchArgs{Routing: r.r.routing, Rows: r.in})
	return err
}

// Pending is what was sent last.
func (r *Round) Pending() *ep.PendingDispatch { return r.pending }

// Receive enqueues the second half of what was sent last.
func (r *Round) Receive(ctx context.Context) error {
	received, err := r.pending.Receive(ctx)
	if err == nil {
		r.route(received.Routing)
		r.receive(received)
	}
	return err
}

// route gives back the routing that was there.
func (r *Round) route(routing *ep.Routing) {
	if r.r.routing != nil && r.r.routing != routing {
		r.r.routing.Release()
	}
	r.r.routing = routing
}

func (r *Round) receive(received *ep.Received) {
	if r.received != nil {
		r.received.Release()
	}
	r.received, r.blank = received, false
}

// Copy enqueues a copy of all that was received last.
func (r *Round) Copy(ctx context.Context, s *weft.Stream) error {
	return r.r.handle.CopyReceived(ctx, s, r.received, r.r.copies())
}

// Combine enqueues that.
func (r *Round) Combine(ctx context.Context, s *weft.Stream) error {
	return r.r.handle.Combine(ctx, s, ep.CombineArgs{
		Routing: r.r.routing, Rows: r.expertRows(), Out: r.out, Bias: r.bias,
	})
}

// SendCombine enqueues the first half of that; the Work's Wait enqueues the second.
func (r *Round) SendCombine(ctx context.Context, s *weft.Stream) (*weft.Work, error) {
	return r.r.handle.SendCombine(ctx, s, ep.CombineArgs{
		Routing: r.r.routing, Rows: r.expertRows(), Out: r.out, Bias: r.bias,
	})
}

// expertRows are those that combine takes.
func (r *Round) expertRows() weft.Tensor {
	if r.direct {
		return r.received.Data
	}
	return r.y
}

// Backward enqueues the gradients of combine and of dispatch.
func (r *Round) Backward(ctx context.Context, s *weft.Stream) error {
	if err := r.CombineBackward(ctx, s, true); err != nil {
		return err
	}
	return r.DispatchBackward(ctx, s, true)
}

// CombineBackward enqueues the gradients of combine, those of weights among them if they are wanted
// and the sum has any.
func (r *Round) CombineBackward(ctx context.Context, s *weft.Stream, weights bool) error {
	g := r.back
	if !weights {
		g.y, g.expertWeights = weft.Tensor{}, weft.Tensor{}
	}
	return r.r.handle.CombineBackward(ctx, s, ep.CombineBackwardArgs{
		Routing: r.r.routing, GradOut: g.out, Rows: g.y, GradRows: g.expertRows, GradWeights: g.expertWeights,
	})
}

// DispatchBackward enqueues the gradients of dispatch, those of weights among them if they are
// wanted.
func (r *Round) DispatchBackward(ctx context.Context, s *weft.Stream, weights bool) error {
	g := r.back
	if !weights {
		g.scalars, g.home = weft.Tensor{}, weft.Tensor{}
	}
	return r.r.handle.DispatchBackward(ctx, s, ep.DispatchBackwardArgs{
		Routing: r.r.routing, GradRows: g.rows, GradRowWeights: g.scalars, GradTokens: g.x,
		GradWeights: g.home,
	})
}

// Received is what the last dispatch has received, until Release.
func (r *Round) Received() *ep.Received { return r.received }

// Blank puts poison where results will stand. Nothing of the handle may be on its way, at any rank.
func (r *Round) Blank() error {
	copies := r.r.copies()
	blank := []weft.Tensor{r.out, r.back.x, r.back.home, r.back.expertRows, r.back.expertWeights}
	for _, t := range given(&copies) {
		blank = append(blank, *t)
	}
	for _, t := range blank {
		if t.IsZero() {
			continue
		}
		if err := r.r.engine.Upload(r.r.comm, t.Data, filled(t.Bytes(), poison)); err != nil {
			return err
		}
	}
	if r.received == nil {
		return nil
	}
	r.blank = true
	for _, t := range []weft.Tensor{r.received.Data, r.received.Scales} {
		if t.IsZero() {
			continue
		}
		if err := r.r.engine.Upload(r.r.comm, t.Data, filled(t.Bytes(), poison)); err != nil {
			return err
		}
	}
	return nil
}

// RowsAt puts the rows that combine takes into other memory, where it reads them from now on.
func (r *Round) RowsAt(to weft.Tensor) error {
	r.y.Data, r.direct = to.Data, false
	return r.r.engine.Upload(r.r.comm, to.Data, r.r.trial.y[r.r.comm.Rank()])
}

// GradientsAt is RowsAt for the gradients of the output.
func (r *Round) GradientsAt(to weft.Tensor) error {
	r.back.out.Data = to.Data
	return r.r.engine.Upload(r.r.comm, to.Data, r.r.trial.gradOut[r.r.comm.Rank()])
}

// Release gives back what the round holds of the handle's, so that its next batches may use it.
func (r *Round) Release() {
	if r.received != nil {
		r.received.Release()
		r.received = nil
	}
	if r.r.routing != nil {
		r.r.routing.Release()
		r.r.routing = nil
	}
}

// Lend is Release, of what the round goes on to look at.
func (r *Round) Lend() {
	if r.received != nil {
		r.received.Release()
	}
}

// CheckReceived compares what was received with the reference, once the stream has passed.
func (r *Round) CheckReceived() error {
	return r.check(func() error {
		want := r.r.received(r.r.p, r.r.comm.Rank(), r.r.wire[0], poison)
		data, err := r.download(r.received.Data)
		if err != nil {
			return err
		}
		scales, err := r.download(r.received.Scales)
		if err != nil {
			return err
		}
		if !r.blank {
			r.r.mend(&want, data, scales)
		}
		r.r.same("received rows", data, want.data)
		r.r.same("received scales", scales, want.scales)
		return nil
	})
}

// CheckCopied does the same with the copy, of memory that held poison.
func (r *Round) CheckCopied() error {
	return r.check(func() error {
		to := r.r.copies()
		return r.r.sameCopies(&to, 0)
	})
}

// CheckCombined does the same with what came home.
func (r *Round) CheckCombined() error {
	return r.check(func() error {
		t, me := r.r.trial, r.r.comm.Rank()
		y := t.y
		if r.direct {
			y = make([][]byte, t.Ranks)
			for d := range y {
				y[d] = t.received(t.p, d, t.wire[0], poison).data
			}
		}
		got, err := r.download(r.out)
		if err != nil {
			return err
		}
		r.r.same("combined rows", got, t.batch.combine(t.p, me, y, t.bias[me], t.spec.Weighting == ep.Weighted))
		return r.r.guards()
	})
}

// CheckGradients does the same with the gradients.
func (r *Round) CheckGradients() error {
	return r.check(func() error {
		t, me, g := r.r.trial, r.r.comm.Rank(), &r.back
		for _, c := range []struct {
			what string
			got  weft.Tensor
			want []byte
		}{
			{"gradients of tokens", g.x, t.batch.combine(t.p, me, t.grad, nil, false)},
			{"gradients brought home", g.home, singleBytes(t.scalarsHome(t.p, me, t.scalars))},
			{"gradients of rows", g.expertRows, t.spread(t.p, me, t.gradOut, poison)},
			{"gradients of weights", g.expertWeights, singleBytes(t.dots(t.p, me, t.gradOut, t.y))},
		} {
			if c.got.IsZero() {
				continue
			}
			if err := r.r.sameTensor(c.what, c.got, c.got.DType, c.got.Shape, c.want); err != nil {
				return err
			}
		}
		return nil
	})
}

// Check is CheckReceived and CheckCombined.
func (r *Round) Check() error {
	err := r.CheckReceived()
	if err == nil && r.r.combines() {
		err = r.CheckCombined()
	}
	return err
}

// Describe compares what the Routing says with the reference.
func (r *Round) Describe() error { return r.check(r.r.describe) }

func (r *Round) check(f func() error) error {
	r.r.wrong = nil
	if err := f(); err != nil {
		return err
	}
	if err := errors.Join(r.r.wrong...); err != nil {
		return fmt.Errorf("%v\n%w", r.r.Case, err)
	}
	return nil
}

func (r *Round) download(t weft.Tensor) ([]byte, error) {
	b := make([]byte, t.Bytes())
	if t.IsZero() {
		return b, nil
	}
	return b, r.r.engine.Download(r.r.comm, b, t.Data)
}

// Free gives everything back. It is collective.
func (r *Round) Free() error {
	r.Release()
	return r.r.memory.Free()
}

// Meet waits for all ranks that are not masked.
func Meet(c *weft.Comm) error { return meet(c) }

// Operands are what the round's calls are given, for tests that make them themselves.
func (r *Round) Operands() (topk, weights weft.Tensor, in ep.Rows, out weft.Tensor) {
	return r.topk, r.weights, r.in, r.out
}

package proxied

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// Combine implements [spec.RowEngine].
func (h *handle) Combine(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	if _, err := h.sendHome(ctx, s, &a, true); err != nil {
		return err
	}
	return h.proxy.Finish(ctx, s)
}

// SendCombine implements [spec.RowEngine].
func (h *handle) SendCombine(ctx context.Context, s *weft.Stream, a spec.SumArgs) (*weft.Work, error) {
	const op = spec.OpCombine
	c, err := h.sendHome(ctx, s, &a, false)
	if err != nil {
		return nil, err
	}
	h.sent(op)
	generation := h.Comm.Operations().Generation()
	return weft.NewWork(func(ctx context.Context) error {
		if err := h.Gate.Enter(op); err != nil {
			return err
		}
		defer h.Gate.Leave()
		stream, err := h.resume(ctx, op, s, generation)
		if err == nil {
			err = h.start(stream, op, c.receive)
		}
		return h.finish(ctx, s, err)
	}), nil
}

// sendHome enqueues a combine: all of it, or the half that sends.
func (h *handle) sendHome(ctx context.Context, s *weft.Stream, a *spec.SumArgs, all bool) (*sum, error) {
	const op = spec.OpCombine
	stream, err := h.enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	if err := h.CheckSum(op, a); err != nil {
		return nil, err
	}
	if !a.Weights.IsZero() {
		a.Batch.Weights = spec.WeightsAtHome
		a.Batch.Info.(*routing).write()
	}
	c, r := &sum{exchange: h.exchange, op: op, args: *a}, a.Batch.Info.(*routing)
	return c, h.start(stream, op, func() error {
		b, err := r.here(op)
		if err == nil {
			err = c.send(b, op)
		}
		if err != nil || !all {
			return err
		}
		return c.receive()
	})
}

// sum is rows that come home, of which a second half may be to come.
type sum struct {
	*exchange
	op   string
	args spec.SumArgs // of the GPU

	host spec.SumArgs // the same on the host
	work *weft.Work   // the host engine's second half
}

// take takes the operands to the host. Rows that do not exist stay out.
func (c *sum) take(b *spec.Batch) error {
	a, s, g := &c.args, &c.base.Spec, &c.base.Geometry
	n, tokens := s.OutputSize(), b.Tokens
	c.host = spec.SumArgs{Batch: b, Rows: c.expertRows(b), Biases: a.Biases}
	moves, err := c.experts(nil, b, a.Rows)
	if err != nil {
		return err
	}
	home := c.home.of((1 + spec.MostBiases) * g.Tokens * n)
	at := func(i int) []byte { return home[i*g.Tokens*n:][:tokens*n] }
	c.host.Out = onHost(at(0), s.Output, tokens, s.Hidden)
	for i := range a.Biases {
		c.host.Bias[i] = onHost(at(1+i), s.Output, tokens, s.Hidden)
		moves = append(moves, move{a.Bias[i].Pointer(), at(1 + i)})
	}
	numbers := c.numbers.of(spec.AlignUp(4*tokens*g.TopK) + 4*c.perRow()*g.Rows())
	ours, theirs := numbers[:4*tokens*g.TopK], numbers[spec.AlignUp(4*tokens*g.TopK):]
	if !a.Weights.IsZero() {
		c.host.Weights = onHost(ours, weft.Float32, tokens, g.TopK)
		moves = append(moves, move{a.Weights.Pointer(), ours})
	}
	if !a.OutScalars.IsZero() {
		c.host.OutScalars = onHost(ours, weft.Float32, tokens, g.TopK)
		each := 4 * c.perRow()
		c.host.Scalars = onHost(theirs, weft.Float32, b.Info.Rows()*c.perRow())
		for _, e := range c.exchange.host.Extents(b) {
			if at := e.First * each; at+e.Rows*each > a.Scalars.Bytes() {
				return c.tooFew(a.Scalars.Bytes() / each)
			}
		}
		moves = c.rowMoves(moves, c.exchange.host.Extents(b), each, a.Scalars.Pointer(), theirs)
	}
	return c.fetch(moves...)
}

// perRow is how many gradients of weights a row has.
func (x *exchange) perRow() int {
	if x.base.Spec.Layout.ByExpert() {
		return 1
	}
	return x.base.Spec.TopK
}

// expertRows is the memory of the host for experts' rows, as the host engine is given it.
func (x *exchange) expertRows(b *spec.Batch) weft.Tensor {
	s, g := &x.base.Spec, &x.base.Geometry
	if s.Layout == spec.ExpertMajor {
		return onHost(x.rows.Bytes(), s.Output, g.Local, g.Capacity, s.Hidden)
	}
	return onHost(x.rows.Bytes(), s.Output, b.Info.Rows(), s.Hidden)
}

// experts adds the moves of experts' rows that exist, of which a tensor may have the first only.
func (x *exchange) experts(all []move, b *spec.Batch, t weft.Tensor) ([]move, error) {
	n := x.base.Spec.OutputSize()
	rows := x.host.Extents(b)
	for _, e := range rows {
		if (e.First+e.Rows)*n > t.Bytes() {
			return nil, x.tooFew(t.Bytes() / n)
		}
	}
	return x.rowMoves(all, rows, n, t.Pointer(), x.rows.Bytes()), nil
}

// tooFew refuses a tensor that lacks rows which have arrived.
func (x *exchange) tooFew(rows int) error {
	return weft.Invalidf("a tensor of %d rows, and more have arrived; pass all that have", rows)
}

// send is what the goroutine does to send a combine.
func (c *sum) send(b *spec.Batch, op string) (err error) {
	c.work = nil
	if err := c.take(b); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	c.work, err = c.exchange.host.SendCombine(context.Background(), nil, c.host)
	return err
}

// receive is what it does to receive.
func (c *sum) receive() error {
	if c.work == nil {
		return fmt.Errorf("%s: %w: it was not sent", c.op, weft.ErrAborted)
	}
	err := c.work.Wait(context.Background())
	c.work = nil
	if err != nil {
		return err
	}
	return c.store(move{c.args.Out.Pointer(), c.host.Out.Raw()})
}

// dispatchBackward is what it does for one.
func (c *sum) dispatchBackward(b *spec.Batch) error {
	if err := c.take(b); err != nil {
		return fmt.Errorf("%s: %w", c.op, err)
	}
	if err := c.exchange.host.DispatchBackward(context.Background(), nil, c.host); err != nil {
		return err
	}
	moves := []move{{c.args.Out.Pointer(), c.host.Out.Raw()}}
	if !c.args.OutScalars.IsZero() {
		moves = append(moves, move{c.args.OutScalars.Pointer(), c.host.OutScalars.Raw()})
	}
	return c.store(moves...)
}

// DispatchBackward implements [spec.RowEngine].
func (h *handle) DispatchBackward(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	const op = spec.OpDispatchBackward
	stream, err := h.enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := h.CheckSum(op, &a); err != nil {
		return err
	}
	if err := h.CheckScalars(op, &a); err != nil {
		return err
	}
	c, r := &sum{exchange: h.exchange, op: op, args: a}, a.Batch.Info.(*routing)
	return h.finish(ctx, s, h.start(stream, op, func() error {
		b, err := r.here(op)
		if err != nil {
			return err
		}
		return c.dispatchBackward(b)
	}))
}

// CombineBackward implements [spec.RowEngine].
func (h *handle) CombineBackward(ctx context.Context, s *weft.Stream, a spec.SpreadArgs) error {
	const op = spec.OpCombineBackward
	stream, err := h.enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := h.CheckSpread(op, &a); err != nil {
		return err
	}
	r := a.Batch.Info.(*routing)
	return h.finish(ctx, s, h.start(stream, op, func() error {
		b, err := r.here(op)
		if err != nil {
			return err
		}
		return h.combineBackward(b, &a)
	}))
}

// combineBackward is what the goroutine does for one. Gradients of rows overwrite the rows, which were read before.
func (x *exchange) combineBackward(b *spec.Batch, a *spec.SpreadArgs) error {
	s, g := &x.base.Spec, &x.base.Geometry
	n := b.Tokens * s.OutputSize()
	host := spec.SpreadArgs{
		Batch: b, GradOut: onHost(x.tokens.Bytes()[:n], s.Output, b.Tokens, s.Hidden), GradRows: x.expertRows(b),
	}
	moves := []move{{a.GradOut.Pointer(), x.tokens.Bytes()[:n]}}
	var err error
	if !a.GradWeights.IsZero() {
		host.Rows = host.GradRows
		host.GradWeights = onHost(x.numbers.of(4*b.Tokens*g.TopK), weft.Float32, b.Tokens, g.TopK)
		if moves, err = x.experts(moves, b, a.Rows); err != nil {
			return fmt.Errorf("%s: %w", spec.OpCombineBackward, err)
		}
	}
	back, err := x.experts(nil, b, a.GradRows)
	if err != nil {
		return fmt.Errorf("%s: %w", spec.OpCombineBackward, err)
	}
	if err := x.fetch(moves...); err != nil {
		return err
	}
	if err := x.host.CombineBackward(context.Background(), nil, host); err != nil {
		return err
	}
	if !a.GradWeights.IsZero() {
		back = append(back, move{a.GradWeights.Pointer(), host.GradWeights.Raw()})
	}
	return x.store(back...)
}

// SetWeights implements [spec.RowEngine].
func (h *handle) SetWeights(ctx context.Context, s *weft.Stream, b *spec.Batch, weights weft.Tensor) error {
	const op = spec.OpSetWeights
	stream, err := h.enterLocal(op, s)
	if err != nil {
		return err
	}
	r := b.Info.(*routing)
	r.write()
	return h.finish(ctx, s, h.start(stream, op, func() error {
		host, err := r.here(op)
		if err != nil {
			return err
		}
		memory := h.numbers.of(weights.Bytes())
		if err := h.fetch(move{weights.Pointer(), memory}); err != nil {
			return err
		}
		return h.host.SetWeights(context.Background(), nil, host, onHost(memory, weft.Float32, weights.Shape...))
	}))
}

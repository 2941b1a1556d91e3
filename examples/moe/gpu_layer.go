package main

import (
	"cmp"
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
)

// gpuBackend has the experts of a layer on a GPU.
type gpuBackend struct {
	*gpu
	values, grads []float32 // of this layer's experts, on the host: those that layer.experts and layer.grads view

	// Kept from the forward pass, on the GPU: a row for each token that came, expert by expert, in
	// each by source rank.
	routing   *ep.Routing
	received  *ep.Received
	y, hidden *cuda.Memory
}

// products are the arguments that a layer's products share: of rows that have in columns with the
// matrices that begin so many numbers into an expert's.
func (w *gpuBackend) products(cfg Config, x, y cuda.Pointer, in, out, matrix int) productArgs {
	return productArgs{
		x: x, w: w.gpu.values.device.Pointer().Add(4 * matrix), y: y,
		offsets: w.routing.ExpertOffsets().Pointer(), counts: w.routing.ExpertCounts().Pointer(),
		in: uint32(in), out: uint32(out), down: uint32(out), right: 1, expert: uint32(cfg.expertSize()),
	}
}

// transposed makes it a product with the transposed matrices, which have as many columns as x.
func (p productArgs) transposed() productArgs {
	p.down, p.right = 1, p.in
	return p
}

func (w *gpuBackend) forward(ctx context.Context, l *layer) (err error) {
	c, s, tokens := l.cfg, weft.StreamOf(w.stream), l.x.Rows
	if err = cmp.Or(w.upload(w.x, tensor(l.x)), w.upload(w.selected, weft.TensorOf(l.selected)),
		w.upload(w.weights, tensor(l.weights)),
		w.upload(w.gpu.values, weft.TensorOf(w.values))); err != nil {
		return err
	}
	x := w.x.tensor(weft.Float32, tokens, c.Hidden)
	if w.routing, err = w.handle.Prepare(ctx, s, w.selected.tensor(weft.Int32, tokens, c.TopK),
		w.weights.tensor(weft.Float32, tokens, c.TopK)); err != nil {
		return err
	}
	if w.received, err = w.handle.Dispatch(ctx, s, ep.DispatchArgs{
		Routing: w.routing, Rows: ep.Rows{Data: x},
	}); err != nil {
		return err
	}
	up := w.products(c, w.received.Data.Pointer(), w.hidden.Pointer(), c.Hidden, c.Inner, 0)
	up.relu = 1
	down := w.products(c, w.hidden.Pointer(), w.y.Pointer(), c.Inner, c.Hidden, c.Hidden*c.Inner)
	if err = cmp.Or(w.multiply(up, len(l.experts)), w.multiply(down, len(l.experts))); err != nil {
		return err
	}
	out := w.g.tensor(weft.Float32, tokens, c.Hidden)
	if err = w.handle.Combine(ctx, s, ep.CombineArgs{
		Routing: w.routing, Rows: w.rows(w.y, c.Hidden), Out: out, Bias: []weft.Tensor{x},
	}); err != nil {
		return err
	}
	return w.finish(ctx, []buffer{w.g}, []weft.Tensor{tensor(l.out)})
}

// rows views memory that has a row for each token that came.
func (w *gpuBackend) rows(m *cuda.Memory, columns int) weft.Tensor {
	return weft.DeviceTensor(m.Pointer(), weft.Float32, w.routing.Rows(), columns)
}

func (w *gpuBackend) backward(ctx context.Context, l *layer, g matrix) (gradX, gradWeights matrix, err error) {
	c, s := l.cfg, weft.StreamOf(w.stream)
	gradX, gradWeights = newMatrix(g.Rows, g.Cols), newMatrix(g.Rows, c.TopK)
	if err = cmp.Or(w.upload(w.g, tensor(g)), w.upload(w.gpu.values, weft.TensorOf(w.values)),
		w.upload(w.gpu.grads, weft.TensorOf(w.grads))); err != nil {
		return gradX, gradWeights, err
	}
	gradRows := w.rows(w.gradOut, c.Hidden)
	if err = w.handle.CombineBackward(ctx, s, ep.CombineBackwardArgs{
		Routing: w.routing, GradOut: w.g.tensor(weft.Float32, g.Rows, c.Hidden), Rows: w.rows(w.y, c.Hidden),
		GradRows: gradRows, GradWeights: w.weights.tensor(weft.Float32, g.Rows, c.TopK),
	}); err != nil {
		return gradX, gradWeights, err
	}
	if err = w.expertsBackward(c, len(l.experts)); err != nil {
		return gradX, gradWeights, err
	}
	err = w.handle.DispatchBackward(ctx, s, ep.DispatchBackwardArgs{
		Routing: w.routing, GradRows: gradRows, GradTokens: w.x.tensor(weft.Float32, g.Rows, c.Hidden),
	})
	if err == nil {
		err = w.finish(ctx, []buffer{w.x, w.weights, w.gpu.grads},
			[]weft.Tensor{tensor(gradX), tensor(gradWeights), weft.TensorOf(w.grads)})
	}
	w.received.Release()
	w.routing.Release()
	return gradX, gradWeights, err
}

// expertsBackward turns gradOut from the gradients of the experts' outputs into those of their
// inputs, and adds to those of their parameters.
func (w *gpuBackend) expertsBackward(c Config, experts int) error {
	gradOut, gradHidden := w.gradOut.Pointer(), w.gradHidden.Pointer()
	down := w.products(c, gradOut, gradHidden, c.Hidden, c.Inner, c.Hidden*c.Inner).transposed()
	down.mask = w.hidden.Pointer()
	up := w.products(c, gradHidden, gradOut, c.Inner, c.Hidden, 0).transposed()
	learn := func(x, g cuda.Pointer, in, out, matrix int) error {
		return w.learn(gradientArgs{
			x: x, g: g, w: w.gpu.grads.device.Pointer().Add(4 * matrix),
			offsets: w.routing.ExpertOffsets().Pointer(), ranges: w.routing.Ranges().Pointer(),
			in: uint32(in), out: uint32(out), expert: uint32(c.expertSize()), ranks: uint32(w.comm.Size()),
		}, experts)
	}
	return cmp.Or(
		w.multiply(down, experts),
		learn(w.hidden.Pointer(), gradOut, c.Inner, c.Hidden, c.Hidden*c.Inner),
		learn(w.received.Data.Pointer(), gradHidden, c.Hidden, c.Inner, 0),
		w.multiply(up, experts), // over gradOut
	)
}

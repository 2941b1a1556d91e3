package main

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// hostBackend has the experts of ranks on the host.
type hostBackend struct {
	handle *ep.Handle

	// Kept from the forward pass, with the experts: a row for each token that came, expert by
	// expert, in each by source rank.
	routing    *ep.Routing
	received   *ep.Received
	in, y      matrix
	hidden     []matrix // of each expert
	from, size []int32  // the rows of each expert
}

func (w *hostBackend) forward(ctx context.Context, l *layer) (err error) {
	if w.routing, err = w.handle.Prepare(ctx, nil, weft.TensorOf(l.selected, l.x.Rows, l.cfg.TopK),
		tensor(l.weights)); err != nil {
		return err
	}
	if w.received, err = w.handle.Dispatch(ctx, nil, ep.DispatchArgs{
		Routing: w.routing, Rows: ep.Rows{Data: tensor(l.x)},
	}); err != nil {
		return err
	}
	w.in = matrixOf(weft.SliceOf[float32](w.received.Data), w.received.Rows(), l.x.Cols)
	w.y, w.hidden = newMatrix(w.in.Rows, w.in.Cols), nil
	w.from, w.size = weft.SliceOf[int32](w.routing.ExpertOffsets()), weft.SliceOf[int32](w.routing.ExpertCounts())
	for e := range l.experts {
		hidden, y := l.experts[e].forward(w.zone(w.in, e))
		w.hidden = append(w.hidden, hidden)
		copy(w.zone(w.y, e).Data, y.Data)
	}
	return w.handle.Combine(ctx, nil, ep.CombineArgs{
		Routing: w.routing, Rows: tensor(w.y), Out: tensor(l.out), Bias: []weft.Tensor{tensor(l.x)},
	})
}

func (x expert) forward(in matrix) (hidden, out matrix) {
	hidden = times(in, x.up)
	for i, v := range hidden.Data {
		hidden.Data[i] = max(v, 0)
	}
	return hidden, times(hidden, x.down)
}

// zone is the rows of m that belong to an expert of this rank.
func (w *hostBackend) zone(m matrix, e int) matrix { return rows(m, int(w.from[e]), int(w.size[e])) }

func (w *hostBackend) backward(ctx context.Context, l *layer, g matrix) (gradX, gradWeights matrix, err error) {
	gradRows := newMatrix(w.in.Rows, w.in.Cols)
	gradX, gradWeights = newMatrix(g.Rows, g.Cols), newMatrix(g.Rows, l.cfg.TopK)
	if err = w.handle.CombineBackward(ctx, nil, ep.CombineBackwardArgs{
		Routing: w.routing, GradOut: tensor(g), Rows: tensor(w.y), GradRows: tensor(gradRows),
		GradWeights: tensor(gradWeights),
	}); err != nil {
		return gradX, gradWeights, err
	}
	w.expertsBackward(l, gradRows)
	err = w.handle.DispatchBackward(ctx, nil, ep.DispatchBackwardArgs{
		Routing: w.routing, GradRows: tensor(gradRows), GradTokens: tensor(gradX),
	})
	w.received.Release()
	w.routing.Release()
	return gradX, gradWeights, err
}

// expertsBackward turns g from the gradients of the experts' outputs into those of their inputs.
// Those of their parameters are computed apart for the rows of each rank, which are of one
// micro-batch, and added in the order of the ranks, which is that of the micro-batches.
func (w *hostBackend) expertsBackward(l *layer, g matrix) {
	part := l.cfg.expert(make([]float32, l.cfg.expertSize()), 0)
	ranges, ranks := weft.SliceOf[int64](w.routing.Ranges()), w.handle.Comm().Size()
	for e, x := range l.experts {
		in, hidden, gradOut := w.zone(w.in, e), w.hidden[e], w.zone(g, e)
		gradHidden := inputGradient(gradOut, x.down)
		for i, v := range hidden.Data {
			if v == 0 {
				gradHidden.Data[i] = 0
			}
		}
		for _, r := range ranges[e*ranks : (e+1)*ranks] {
			from, n := int(r>>32), int(int32(r)) // of the rows in the zone
			weightGradient(part.up, rows(in, from, n), rows(gradHidden, from, n))
			weightGradient(part.down, rows(hidden, from, n), rows(gradOut, from, n))
			add(l.grads[e].up.Data, part.up.Data)
			add(l.grads[e].down.Data, part.down.Data)
		}
		copy(gradOut.Data, inputGradient(gradHidden, x.up).Data)
	}
}

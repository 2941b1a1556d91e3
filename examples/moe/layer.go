package main

import (
	"context"
	"slices"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

func (x expert) forward(in matrix) (hidden, out matrix) {
	hidden = times(in, x.up)
	for i, v := range hidden.Data {
		hidden.Data[i] = max(v, 0)
	}
	return hidden, times(hidden, x.down)
}

// layer is out = x + sum over the selected experts of weight * expert(x). Experts are spread over the ranks; those of this rank work for all tokens.
type layer struct {
	cfg            Config
	handle         *ep.Handle // serves all layers: each holds on to what it received until its backward pass
	router         matrix
	experts, grads []expert

	// Kept from the forward pass. At home, a row for each token of this rank:
	x, out, probs, weights matrix
	selected               []int32 // [tokens, topk] experts
	// With the experts, a row for each token that came, expert by expert, in each by source rank:
	routing    *ep.Routing
	received   *ep.Received
	in, y      matrix
	hidden     []matrix // of each expert
	from, size []int32  // the rows of each expert
}

// forward sends x to the experts, lets those of this rank work, and returns out, which Combine sums on top of x.
func (l *layer) forward(ctx context.Context, x matrix) (out matrix, err error) {
	l.x, l.out = x, newMatrix(x.Rows, x.Cols)
	l.route()
	if l.routing, err = l.handle.Prepare(ctx, nil, weft.TensorOf(l.selected, x.Rows, l.cfg.TopK), tensor(l.weights)); err != nil {
		return matrix{}, err
	}
	if l.received, err = l.handle.Dispatch(ctx, nil, l.routing, ep.Rows{Data: tensor(x)}); err != nil {
		return matrix{}, err
	}
	l.in = matrixOf(weft.SliceOf[float32](l.received.Data), l.received.Rows(), x.Cols)
	l.y, l.hidden = newMatrix(l.in.Rows, l.in.Cols), nil
	l.from, l.size = weft.SliceOf[int32](l.routing.ExpertOffsets()), weft.SliceOf[int32](l.routing.ExpertCounts())
	for e := range l.experts {
		hidden, y := l.experts[e].forward(l.zone(l.in, e))
		l.hidden = append(l.hidden, hidden)
		copy(l.zone(l.y, e).Data, y.Data)
	}
	return l.out, l.handle.Combine(ctx, nil, l.routing, tensor(l.y), tensor(l.out), tensor(x))
}

// route selects the most probable experts of each token. Their weights are their probabilities, scaled to the sum 1.
func (l *layer) route() {
	l.probs, l.weights, l.selected = times(l.x, l.router), newMatrix(l.x.Rows, l.cfg.TopK), nil
	for t := range l.x.Rows {
		softmax(row(l.probs, t))
		rest, w, sum := slices.Clone(row(l.probs, t)), row(l.weights, t), float32(0)
		for i := range w {
			best := max(slices.Index(rest, slices.Max(rest)), 0) // no number equals NaN
			l.selected, w[i], rest[best] = append(l.selected, int32(best)), rest[best], -1
			sum += w[i]
		}
		blas32.Scal(1/sum, vector(w))
	}
}

// zone is the rows of m that belong to an expert of this rank.
func (l *layer) zone(m matrix, e int) matrix { return rows(m, int(l.from[e]), int(l.size[e])) }

// backward turns g from the gradient of out into that of x, sets gradRouter, and adds to the gradients of this rank's experts.
func (l *layer) backward(ctx context.Context, g, gradRouter matrix) error {
	gradRows, gradX, gradWeights := newMatrix(l.in.Rows, l.in.Cols), newMatrix(g.Rows, g.Cols), newMatrix(g.Rows, l.cfg.TopK)
	if err := l.handle.CombineBackward(ctx, nil, l.routing, tensor(g), tensor(l.y), tensor(gradRows), tensor(gradWeights)); err != nil {
		return err
	}
	l.expertsBackward(gradRows)
	gradLogits := l.routeBackward(gradWeights)
	weightGradient(gradRouter, l.x, gradLogits)
	err := l.handle.DispatchBackward(ctx, nil, l.routing, tensor(gradRows), weft.Tensor{}, tensor(gradX), weft.Tensor{})
	add(g.Data, gradX.Data)
	add(g.Data, inputGradient(gradLogits, l.router).Data)
	l.received.Release()
	l.routing.Release()
	return err
}

// expertsBackward turns g from the gradients of the experts' outputs into those of their inputs. Those of their parameters are computed apart for the
// rows of each rank, which are of one micro-batch, and added in the order of the ranks, which is that of the micro-batches.
func (l *layer) expertsBackward(g matrix) {
	part := l.cfg.expert(make([]float32, l.cfg.expertSize()), 0)
	ranges, ranks := weft.SliceOf[int64](l.routing.Ranges()), l.handle.Comm().Size()
	for e, x := range l.experts {
		in, hidden, gradOut := l.zone(l.in, e), l.hidden[e], l.zone(g, e)
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

// routeBackward is the gradient of the router's logits: through the weights of the selected experts, and of the balancing loss of
// Fedus et al., "Switch Transformers": 0.01 * experts * sum over the experts of (share of the selections) * (mean probability).
func (l *layer) routeBackward(gradWeights matrix) matrix {
	g, share := newMatrix(l.probs.Rows, l.probs.Cols), make([]float32, l.probs.Cols)
	for _, e := range l.selected {
		share[e] += 0.01 * float32(len(share)) / float32(microBatches*g.Rows*len(l.selected))
	}
	for t := range g.Rows {
		copy(row(g, t), share)
		softmaxBackward(row(g, t), row(l.probs, t))
		softmaxBackward(row(gradWeights, t), row(l.weights, t)) // weights are the softmax of the selected logits alone
		for k, v := range row(gradWeights, t) {
			row(g, t)[l.selected[t*gradWeights.Cols+k]] += v
		}
	}
	return g
}

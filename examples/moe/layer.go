package main

import (
	"context"
	"slices"

	"gonum.org/v1/gonum/blas/blas32"
)

// layer is out = x + sum over the selected experts of weight * expert(x). Experts are spread over
// the ranks; those of this rank work for all tokens.
type layer struct {
	cfg            Config
	router         matrix
	experts, grads []expert // of this rank, on the host
	backend        backend

	// Kept from the forward pass: a row for each token of this rank.
	x, out, probs, weights matrix
	selected               []int32 // [tokens, topk] experts
}

// backend is where the experts of a layer work: on the host (host.go) or on a GPU (gpu_layer.go).
// It is the layer's own, because it keeps data for the backward pass.
type backend interface {
	// forward sends l.x to the selected experts, lets those of this rank work, and sets l.out to
	// their weighted sum on top of l.x.
	forward(ctx context.Context, l *layer) error
	// backward makes of g, the gradient of l.out, those of l.x by way of the experts and of
	// l.weights, and adds to l.grads.
	backward(ctx context.Context, l *layer, g matrix) (gradX, gradWeights matrix, err error)
}

// forward returns out.
func (l *layer) forward(ctx context.Context, x matrix) (out matrix, err error) {
	l.x, l.out = x, newMatrix(x.Rows, x.Cols)
	l.route()
	return l.out, l.backend.forward(ctx, l)
}

// route selects the most probable experts of each token. Their weights are their probabilities,
// scaled to the sum 1.
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

// backward turns g from the gradient of out into that of x, sets gradRouter, and adds to the
// gradients of this rank's experts.
func (l *layer) backward(ctx context.Context, g, gradRouter matrix) error {
	gradX, gradWeights, err := l.backend.backward(ctx, l, g)
	if err != nil {
		return err
	}
	gradLogits := l.routeBackward(gradWeights)
	weightGradient(gradRouter, l.x, gradLogits)
	add(g.Data, gradX.Data)
	add(g.Data, inputGradient(gradLogits, l.router).Data)
	return nil
}

// routeBackward is the gradient of the router's logits: through the weights of the selected
// experts, and of the balancing loss of Fedus et al., "Switch Transformers": 0.01 * experts * sum
// over the experts of (share of the selections) * (mean probability).
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

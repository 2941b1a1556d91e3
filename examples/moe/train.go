package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
)

// train makes all steps and says how they go. It returns the mean loss of about the last fifty, and
// a hash of all losses.
func (m *model) train(ctx context.Context, text []byte, out io.Writer) (mean float64, sum uint64, err error) {
	begin, hash := time.Now(), fnv.New64a()
	for step := 1; step <= m.cfg.Steps; step++ {
		loss, err := m.step(ctx, text, step-1)
		if err != nil {
			return 0, 0, fmt.Errorf("step %d: %w", step, err)
		}
		fmt.Fprintf(hash, "%x,", loss)
		mean += (float64(loss) - mean) / float64(min(step, 50))
		if step%10 == 0 || step == m.cfg.Steps {
			speed := float64(step*microBatches*m.cfg.Tokens) / time.Since(begin).Seconds()
			fmt.Fprintf(out, "step %4d of %d: loss %.4f, %.0f tokens/s\n", step, m.cfg.Steps, mean, speed)
		}
	}
	fmt.Fprintf(out, "%.1f s; exchanges verified against a computation without them: %d, on every rank\n",
		time.Since(begin).Seconds(), m.verified)
	return mean, hash.Sum64(), nil
}

// step trains on four micro-batches, as many at a time as there are ranks, and returns their mean
// loss.
func (m *model) step(ctx context.Context, text []byte, step int) (loss float32, err error) {
	n := m.cfg.denseSize()
	clear(m.experts.grad)
	clear(m.sum)
	for first := 0; first < microBatches; first += m.comm.Size() {
		before, target := sample(text, m.cfg, step, first+m.comm.Rank())
		if m.own[n], err = m.forward(ctx, before, target); err != nil {
			return 0, err
		}
		if err = m.backward(ctx, m.cfg.dense(m.own)); err != nil {
			return 0, err
		}
		// AllReduce adds in the order of the ranks, which is that of these micro-batches. Rank 0
		// adds the sum so far to its own, so the sum is ((0 + 1) + 2) + 3 on any number of ranks.
		// Reducing once a step would make it (0 + 2) + (1 + 3) on two, which has other last bits.
		if m.comm.Rank() == 0 {
			add(m.own, m.sum)
		}
		if err = m.group.AllReduce(ctx, nil, weft.TensorOf(m.sum), weft.TensorOf(m.own), weft.Sum); err != nil {
			return 0, err
		}
	}
	if m.cfg.Verify > 0 && (step+1)%m.cfg.Verify == 0 {
		if err = m.verify(ctx); err != nil {
			return 0, err
		}
	}
	m.dense.update(m.cfg, step)
	m.experts.update(m.cfg, step) // whose gradients are complete, and added up, where the experts are
	return m.sum[n], nil
}

// verify computes the layers' last forward pass again, token by token and without the exchange,
// from the experts of all ranks.
func (m *model) verify(ctx context.Context) error {
	experts, local := make([]float32, m.comm.Size()*len(m.experts.value)), m.cfg.Experts/m.comm.Size()
	if err := m.group.AllGather(ctx, nil, weft.TensorOf(experts), weft.TensorOf(m.experts.value)); err != nil {
		return err
	}
	wrong := make([]int32, m.comm.Size()) // rows of each rank
	for i, l := range m.layers {
		for t := range l.x.Rows {
			got, rest := row(l.out, t), slices.Clone(row(l.out, t))
			blas32.Axpy(-1, vector(row(l.x, t)), vector(rest))
			for k, w := range row(l.weights, t) {
				e := int(l.selected[t*m.cfg.TopK+k])
				_, y := m.cfg.expert(experts, (e/local*m.cfg.Layers+i)*local+e%local).forward(rows(l.x, t, 1))
				blas32.Axpy(-w, vector(y.Data), vector(rest))
			}
			if !(blas32.Nrm2(vector(rest)) <= 1e-6*(1+blas32.Nrm2(vector(got)))) { // NaN is wrong too
				wrong[m.comm.Rank()]++
			}
		}
	}
	// All ranks get the numbers and stop here. If one stopped alone, the others would only see that it
	// left.
	err := m.group.AllReduce(ctx, nil, weft.TensorOf(wrong), weft.TensorOf(wrong), weft.Sum)
	if err == nil && slices.Max(wrong) > 0 {
		err = fmt.Errorf("experts returned wrong rows; their number, by rank: %d", wrong)
	}
	m.verified += len(m.layers)
	return err
}

// parameters are numbers that Adam trains (Kingma and Ba, 2014).
type parameters struct{ value, grad, mean, square []float32 }

func newParameters(grad []float32) parameters {
	return parameters{make([]float32, len(grad)), grad, make([]float32, len(grad)), make([]float32, len(grad))}
}

// update makes a step against the gradients. Its size rises during the first twenty, then falls
// towards zero.
func (p *parameters) update(cfg Config, step int) {
	const b1, b2 = 0.9, 0.98
	rate := cfg.Rate * min(float64(step+1)/20, 1) * (1 - float64(step)/float64(cfg.Steps))
	r, c := float32(rate/(1-math.Pow(b1, float64(step+1)))), float32(1/(1-math.Pow(b2, float64(step+1))))
	for i, g := range p.grad {
		p.mean[i] = b1*p.mean[i] + (1-b1)*g
		p.square[i] = b2*p.square[i] + (1-b2)*g*g
		p.value[i] -= r * p.mean[i] / (float32(math.Sqrt(float64(p.square[i]*c))) + 1e-8)
	}
}

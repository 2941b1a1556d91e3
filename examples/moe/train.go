package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
)

// microBatches make a step. Each has gradients of its own, and these are added in order, whoever computed them: this is why the losses of 1, 2 and 4 ranks
// are the same, bit for bit.
const microBatches = 4

// trainer trains the model on one rank.
type trainer struct {
	*model
	comm     *weft.Comm
	group    *collective.Group
	text     []byte
	own, all []float32 // for each micro-batch, of this rank and of all, the gradients of the dense parameters and the loss
	verified int       // forward passes of layers
}

// newTrainer is called by all ranks with the same arguments.
func newTrainer(ctx context.Context, comm *weft.Comm, text []byte, cfg Config) (*trainer, error) {
	if r := comm.Size(); r > microBatches || microBatches%r != 0 || min(cfg.Layers, cfg.Steps) < 1 || len(text) <= cfg.Context {
		return nil, fmt.Errorf("%d ranks, %d bytes of text, %+v: want 1, 2 or 4 ranks, some text, and positive sizes", r, len(text), cfg)
	}
	handle, err := ep.NewHandle(ctx, comm, cfg.exchange())
	if err != nil {
		return nil, err
	}
	group, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return nil, err
	}
	n := microBatches * (cfg.denseSize() + 1)
	return &trainer{newModel(cfg, handle), comm, group, text, make([]float32, n/comm.Size()), make([]float32, n), 0}, nil
}

// step trains on four micro-batches: in round j rank r works on number j*ranks + r. It returns their mean loss.
func (t *trainer) step(ctx context.Context, step int) (loss float32, err error) {
	n, ranks, rounds := t.cfg.denseSize(), t.comm.Size(), microBatches/t.comm.Size()
	clear(t.experts.grad)
	for j := range rounds {
		own := t.own[j*(n+1) : (j+1)*(n+1)]
		before, target := sample(t.text, t.cfg, step, j*ranks+t.comm.Rank())
		if own[n], err = t.forward(ctx, before, target); err != nil {
			return 0, err
		}
		if err := t.backward(ctx, t.cfg.dense(own)); err != nil {
			return 0, err
		}
	}
	if t.cfg.Verify > 0 && (step+1)%t.cfg.Verify == 0 {
		if err := t.verify(ctx); err != nil {
			return 0, err
		}
	}
	// The gradients of the experts are complete, and added up, where the experts are. The others are gathered.
	if err := t.gather(ctx, t.all, t.own); err != nil {
		return 0, err
	}
	clear(t.dense.grad)
	for micro := range microBatches {
		at := (micro%ranks*rounds + micro/ranks) * (n + 1)
		add(t.dense.grad, t.all[at:at+n])
		loss += t.all[at+n]
	}
	t.dense.update(t.cfg, step)
	t.experts.update(t.cfg, step)
	return loss, nil
}

func (t *trainer) gather(ctx context.Context, all, own []float32) error {
	return t.exchange.time(func() error { return t.group.AllGather(ctx, nil, weft.TensorOf(all), weft.TensorOf(own)) })
}

// verify computes the layers' last forward pass again, token by token and without the exchange, from the experts of all ranks.
func (t *trainer) verify(ctx context.Context) error {
	experts := make([]float32, t.comm.Size()*len(t.experts.value))
	if err := t.gather(ctx, experts, t.experts.value); err != nil {
		return err
	}
	local := t.cfg.Experts / t.comm.Size()
	for i, l := range t.layers {
		for tok := range l.x.Rows {
			want := slices.Clone(row(l.x, tok))
			for k, w := range row(l.weights, tok) {
				e := int(l.selected[tok*t.cfg.TopK+k])
				_, y := t.cfg.expert(experts, (e/local*t.cfg.Layers+i)*local+e%local).forward(rows(l.x, tok, 1))
				blas32.Axpy(w, vector(y.Data), vector(want))
			}
			for h, got := range row(l.out, tok) {
				if d := got - want[h]; !(d*d <= 1e-12*(1+got*got)) {
					return fmt.Errorf("layer %d: token %d of rank %d holds %v with the exchange, %v without it", i, tok, t.comm.Rank(), got, want[h])
				}
			}
		}
		t.verified++
	}
	return nil
}

// parameters are numbers that Adam trains (Kingma and Ba, 2014).
type parameters struct{ value, grad, mean, square []float32 }

func newParameters(n int) parameters {
	return parameters{make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)}
}

// update makes a step against the gradients. Its size rises during the first twenty, then falls towards zero.
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

// stopwatch adds up the time that functions take.
type stopwatch struct{ total time.Duration }

func (s *stopwatch) time(f func() error) error {
	defer func(begin time.Time) { s.total += time.Since(begin) }(time.Now())
	return f()
}

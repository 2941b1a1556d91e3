package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
)

// microBatches make a step. Each has its own gradients, added in this order whoever computed them, so the losses of 1, 2 and 4 ranks are equal bit for bit.
const microBatches = 4

// Config is the model and its training. It is the same on every rank.
type Config struct {
	Context               int // bytes that the model sees before the one that it predicts
	Hidden, Inner         int // numbers that a token is between layers, and inside an expert
	Layers, Experts, TopK int // experts of each layer, on all ranks together, and those that a token visits
	Tokens, Steps         int // tokens of a micro-batch
	Rate                  float64
	Verify                int // the exchange is verified every so many steps; 0 = never
	Seed                  uint64
}

// DefaultConfig trains in half a minute on two cores.
func DefaultConfig() Config { return Config{8, 64, 128, 2, 16, 2, 256, 700, 8e-3, 50, 1} }

// dense are the parameters that every rank has, or their gradients: an embedding for each byte at each place before the one to predict, the routers of the
// layers, one below the other, and what turns a row into the logits of the next byte.
type dense struct{ embed, routers, out matrix } // [context*256, hidden], [layers*hidden, experts], [hidden, 256]

func (c Config) denseSize() int { return (c.Context*256 + c.Layers*c.Experts + 256) * c.Hidden }

// dense views denseSize numbers.
func (c Config) dense(buf []float32) dense {
	routers := buf[c.Context*256*c.Hidden:]
	out := routers[c.Layers*c.Hidden*c.Experts:]
	return dense{matrixOf(buf, c.Context*256, c.Hidden), matrixOf(routers, c.Layers*c.Hidden, c.Experts), matrixOf(out, c.Hidden, 256)}
}

// model predicts a byte: the embeddings of those before it add up to a row, which passes through the layers and becomes 256 probabilities.
type model struct {
	cfg            Config
	comm           *weft.Comm
	group          *collective.Group
	dense, experts parameters // of the experts those of this rank, layer by layer
	weights        dense      // views of the dense parameters
	layers         []*layer
	own, all       []float32     // for each micro-batch, of this rank and of all, the gradients of the dense parameters and the loss
	verified       int           // forward passes of layers
	exchange       time.Duration // spent in communication, waiting for others included
	before, target []byte        // of the micro-batch in work: for each token the bytes before it, and the byte to predict
	x, probs       matrix        // what comes out of the layers, and of the softmax
}

// newModel is called by all ranks with the same Config.
func newModel(ctx context.Context, comm *weft.Comm, cfg Config) (*model, error) {
	ranks, local := comm.Size(), cfg.Experts/comm.Size()
	if ranks > microBatches || microBatches%ranks != 0 || min(cfg.Layers, cfg.Steps) < 1 {
		return nil, fmt.Errorf("%d ranks, %+v: want 1, 2 or 4 ranks and positive sizes", ranks, cfg)
	}
	handle, err := ep.NewHandle(ctx, comm, ep.Spec{
		Experts: cfg.Experts, TopK: cfg.TopK, Hidden: cfg.Hidden, MaxTokens: cfg.Tokens, Live: cfg.Layers,
		Layout: ep.ExpertPacked, Wire: ep.PerRank, Reduction: ep.Exact, Sum: ep.Weighted, Payload: ep.FP32,
	})
	if err != nil {
		return nil, err
	}
	group, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return nil, err
	}
	m := &model{cfg: cfg, comm: comm, group: group, all: make([]float32, microBatches*(cfg.denseSize()+1))}
	m.own = make([]float32, len(m.all)/ranks)
	m.dense, m.experts = newParameters(cfg.denseSize()), newParameters(cfg.Layers*local*cfg.expertSize())
	m.weights = cfg.dense(m.dense.value)
	rng := rand.New(rand.NewPCG(cfg.Seed, math.MaxUint64))
	fill(m.weights.embed, rng, 1/math.Sqrt(float64(cfg.Context)))
	fill(m.weights.routers, rng, 1/math.Sqrt(float64(cfg.Hidden)))
	fill(m.weights.out, rng, 0.1/math.Sqrt(float64(cfg.Hidden)))
	for i := range cfg.Layers {
		l := &layer{cfg: cfg, handle: handle, exchange: &m.exchange, router: rows(m.weights.routers, i*cfg.Hidden, cfg.Hidden)}
		for e := range local {
			x := cfg.expert(m.experts.value, i*local+e)
			rng := rand.New(rand.NewPCG(cfg.Seed, math.MaxUint64-1-uint64(i*cfg.Experts+comm.Rank()*local+e))) // the same wherever it lives
			fill(x.up, rng, math.Sqrt(2/float64(cfg.Hidden)))
			fill(x.down, rng, 1/math.Sqrt(float64(cfg.Inner*cfg.Layers)))
			l.experts, l.grads = append(l.experts, x), append(l.grads, cfg.expert(m.experts.grad, i*local+e))
		}
		m.layers = append(m.layers, l)
	}
	return m, nil
}

// forward returns the loss of a micro-batch: the sum over its tokens, in nats, divided by the tokens of the step.
func (m *model) forward(ctx context.Context, before, target []byte) (loss float32, err error) {
	m.before, m.target, m.x = before, target, newMatrix(len(target), m.cfg.Hidden)
	for i, b := range before {
		add(row(m.x, i/m.cfg.Context), row(m.weights.embed, i%m.cfg.Context*256+int(b)))
	}
	for _, l := range m.layers {
		if m.x, err = l.forward(ctx, m.x); err != nil {
			return 0, err
		}
	}
	m.probs = times(m.x, m.weights.out)
	sum := 0.0
	for t, b := range target {
		softmax(row(m.probs, t))
		sum -= math.Log(float64(row(m.probs, t)[b]) + 1e-30)
	}
	return float32(sum / float64(microBatches*len(target))), nil
}

// backward sets g to the gradients of that loss, and adds those of the experts of this rank to theirs.
func (m *model) backward(ctx context.Context, g dense) error {
	for t, b := range m.target {
		row(m.probs, t)[b]--
	}
	blas32.Scal(1/float32(microBatches*len(m.target)), vector(m.probs.Data))
	weightGradient(g.out, m.x, m.probs)
	gx := inputGradient(m.probs, m.weights.out)
	for i := len(m.layers) - 1; i >= 0; i-- {
		if err := m.layers[i].backward(ctx, gx, rows(g.routers, i*m.cfg.Hidden, m.cfg.Hidden)); err != nil {
			return err
		}
	}
	clear(g.embed.Data)
	for i, b := range m.before {
		add(row(g.embed, i%m.cfg.Context*256+int(b)), row(gx, i/m.cfg.Context))
	}
	return nil
}

// step trains on four micro-batches and returns their mean loss. In round j rank r works on number j*ranks + r.
func (m *model) step(ctx context.Context, text []byte, step int) (loss float32, err error) {
	n, ranks, rounds := m.cfg.denseSize(), m.comm.Size(), microBatches/m.comm.Size()
	clear(m.experts.grad)
	for j := 0; j < rounds && err == nil; j++ {
		own := m.own[j*(n+1) : (j+1)*(n+1)]
		before, target := sample(text, m.cfg, step, j*ranks+m.comm.Rank())
		if own[n], err = m.forward(ctx, before, target); err == nil {
			err = m.backward(ctx, m.cfg.dense(own))
		}
	}
	if err == nil && m.cfg.Verify > 0 && (step+1)%m.cfg.Verify == 0 {
		err = m.verify(ctx)
	}
	// The gradients of the experts are complete, and added up, where the experts are. The others are gathered.
	if err == nil {
		err = m.gather(ctx, m.all, m.own)
	}
	if err != nil {
		return 0, err
	}
	clear(m.dense.grad)
	for micro := range microBatches {
		at := (micro%ranks*rounds + micro/ranks) * (n + 1)
		add(m.dense.grad, m.all[at:at+n])
		loss += m.all[at+n]
	}
	m.dense.update(m.cfg, step)
	m.experts.update(m.cfg, step)
	return loss, nil
}

func (m *model) gather(ctx context.Context, all, own []float32) error {
	return timed(&m.exchange, func() error { return m.group.AllGather(ctx, nil, weft.TensorOf(all), weft.TensorOf(own)) })
}

// verify computes the layers' last forward pass again, token by token and without the exchange, from the experts of all ranks.
func (m *model) verify(ctx context.Context) error {
	experts, local := make([]float32, m.comm.Size()*len(m.experts.value)), m.cfg.Experts/m.comm.Size()
	if err := m.gather(ctx, experts, m.experts.value); err != nil {
		return err
	}
	for i, l := range m.layers {
		for t := range l.x.Rows {
			got, rest := row(l.out, t), slices.Clone(row(l.out, t))
			blas32.Axpy(-1, vector(row(l.x, t)), vector(rest))
			for k, w := range row(l.weights, t) {
				e := int(l.selected[t*m.cfg.TopK+k])
				_, y := m.cfg.expert(experts, (e/local*m.cfg.Layers+i)*local+e%local).forward(rows(l.x, t, 1))
				blas32.Axpy(-w, vector(y.Data), vector(rest))
			}
			if d := blas32.Nrm2(vector(rest)); !(d <= 1e-6*(1+blas32.Nrm2(vector(got)))) {
				return fmt.Errorf("layer %d: token %d of rank %d is %v, off by %v", i, t, m.comm.Rank(), got, d)
			}
		}
		m.verified++
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

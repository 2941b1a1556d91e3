package main

import (
	"context"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft/ep"
)

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
	dense, experts parameters // of the experts those of this rank, layer by layer
	weights        dense      // views of the dense parameters
	layers         []*layer
	exchange       stopwatch // time spent in communication, waiting for others included

	context, target []byte // of the micro-batch in work: for each token the bytes before it, and the byte to predict
	x, probs        matrix // what comes out of the layers, and of the softmax
}

func newModel(cfg Config, handle *ep.Handle) *model {
	rank, local := handle.Comm().Rank(), cfg.Experts/handle.Comm().Size()
	m := &model{cfg: cfg, dense: newParameters(cfg.denseSize()), experts: newParameters(cfg.Layers * local * cfg.expertSize())}
	m.weights = cfg.dense(m.dense.value)
	rng := rand.New(rand.NewPCG(cfg.Seed, math.MaxUint64))
	fill(m.weights.embed, rng, 1/math.Sqrt(float64(cfg.Context)))
	fill(m.weights.routers, rng, 1/math.Sqrt(float64(cfg.Hidden)))
	fill(m.weights.out, rng, 0.1/math.Sqrt(float64(cfg.Hidden)))
	for i := range cfg.Layers {
		l := &layer{cfg: cfg, handle: handle, exchange: &m.exchange, router: rows(m.weights.routers, i*cfg.Hidden, cfg.Hidden)}
		for e := range local {
			x := cfg.expert(m.experts.value, i*local+e)
			rng := rand.New(rand.NewPCG(cfg.Seed, math.MaxUint64-1-uint64(i*cfg.Experts+rank*local+e))) // the same wherever it lives
			fill(x.up, rng, math.Sqrt(2/float64(cfg.Hidden)))
			fill(x.down, rng, 1/math.Sqrt(float64(cfg.Inner*cfg.Layers)))
			l.experts, l.grads = append(l.experts, x), append(l.grads, cfg.expert(m.experts.grad, i*local+e))
		}
		m.layers = append(m.layers, l)
	}
	return m
}

// place is the embedding of the i-th byte of the micro-batch's contexts.
func (m *model) place(i int) int { return i%m.cfg.Context*256 + int(m.context[i]) }

// forward returns the loss of a micro-batch: the sum over its tokens, in nats, divided by the tokens of the step.
func (m *model) forward(ctx context.Context, before, target []byte) (loss float32, err error) {
	m.context, m.target, m.x = before, target, newMatrix(len(target), m.cfg.Hidden)
	for i := range before {
		add(row(m.x, i/m.cfg.Context), row(m.weights.embed, m.place(i)))
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
	for i := range m.context {
		add(row(g.embed, m.place(i)), row(gx, i/m.cfg.Context))
	}
	return nil
}

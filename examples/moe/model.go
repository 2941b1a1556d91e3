package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
)

// microBatches make a step. Each has gradients of its own, which are added up in the order 0, 1, 2,
// 3, whichever ranks computed them: a floating-point sum depends on its order, and therefore the
// losses of 1, 2 and 4 ranks are equal bit for bit.
const microBatches = 4

// Config is the model and its training. It is the same on every rank.
type Config struct {
	Context               int // bytes that the model sees before the one that it predicts
	Hidden, Inner         int // numbers that a token is between layers, and inside an expert
	Layers, Experts, TopK int // experts of each layer, on all ranks together, and those that a token visits
	Tokens, Steps         int // tokens of a micro-batch, and steps of the training
	Rate                  float64
	Verify                int    // the exchange is verified every so many steps, 0 = never
	Seed                  uint64 // of the parameters and the samples
}

// defaults train in half a minute on two cores.
var defaults = Config{
	Context: 8, Hidden: 64, Inner: 64, Layers: 3, Experts: 16, TopK: 2, Tokens: 256,
	Steps: 300, Rate: 1.2e-2, Verify: 50, Seed: 1,
}

// dense are the parameters that every rank has, or their gradients: an embedding for each byte at
// each place before the one to predict, the routers of the layers, one below the other, and the
// matrix that turns a row into the logits of the next byte.
type dense struct{ embed, routers, out matrix } // [context*256, hidden], [layers*hidden, experts], [hidden, 256]

func (c Config) denseSize() int { return (c.Context*256 + c.Layers*c.Experts + 256) * c.Hidden }

// dense views denseSize numbers.
func (c Config) dense(buf []float32) dense {
	routers := buf[c.Context*256*c.Hidden:]
	out := routers[c.Layers*c.Hidden*c.Experts:]
	return dense{
		matrixOf(buf, c.Context*256, c.Hidden), matrixOf(routers, c.Layers*c.Hidden, c.Experts),
		matrixOf(out, c.Hidden, 256),
	}
}

// expert is relu(x·up)·down, or the gradients of its matrices.
type expert struct{ up, down matrix } // [hidden, inner], [inner, hidden]

func (c Config) expertSize() int { return 2 * c.Hidden * c.Inner }

// expert views the i-th of the experts in buf.
func (c Config) expert(buf []float32, i int) expert {
	buf = buf[i*c.expertSize():]
	return expert{matrixOf(buf, c.Hidden, c.Inner), matrixOf(buf[c.Hidden*c.Inner:], c.Inner, c.Hidden)}
}

// model predicts a byte: the embeddings of those before it add up to a row, which passes through
// the layers and becomes 256 probabilities.
type model struct {
	cfg            Config
	comm           *weft.Comm
	group          *collective.Group
	handle         *ep.Handle // serves all layers: each holds its received batch until its backward pass
	dense, experts parameters // of the experts those of this rank, layer by layer
	weights        dense      // views of the dense parameters
	layers         []*layer
	gpu            *gpu // where the experts work, or nil
	// gradients of the dense parameters, then the loss: of this rank's micro-batch, and of those of
	// the step so far
	own, sum       []float32
	verified       int    // forward passes of layers, on every rank
	before, target []byte // of the micro-batch in work: for each token the bytes before it, and the byte to predict
	x, probs       matrix // the output of the layers, and of the softmax
}

// newModel is called by all ranks with the same Config. Gradients of the parameters that every rank
// has are summed through comm. Tokens travel through exchange, where the experts work: on the GPUs
// that its ranks are bound to, or on the host, where it may be comm itself. The caller closes the
// model before either.
func newModel(ctx context.Context, comm, exchange *weft.Comm, cfg Config) (_ *model, err error) {
	ranks, local := comm.Size(), cfg.Experts/comm.Size()
	if microBatches%ranks != 0 {
		return nil, fmt.Errorf("%d ranks: want 1, 2 or 4, which share %d micro-batches evenly", ranks, microBatches)
	}
	if min(cfg.Context, cfg.Hidden, cfg.Inner, cfg.Layers, cfg.Experts, cfg.TopK, cfg.Tokens, cfg.Steps) < 1 {
		return nil, fmt.Errorf("%+v: want positive sizes", cfg)
	}
	spec := ep.Spec{
		Experts: cfg.Experts, TopK: cfg.TopK, Hidden: cfg.Hidden, MaxTokens: cfg.Tokens, Live: cfg.Layers,
		Layout: ep.ExpertPacked, Reduction: ep.Exact, Weighting: ep.Weighted, Payload: ep.FP32,
	}
	if exchange.Device() != nil {
		spec.Counts = ep.DeviceCounts // nothing waits for the host to learn how many rows have come
	}
	handle, err := ep.NewHandle(ctx, exchange, spec)
	if err != nil {
		return nil, err
	}
	m := &model{cfg: cfg, comm: comm, handle: handle}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.group, err = collective.New(ctx, comm, collective.Options{}); err != nil {
		return nil, err
	}
	if exchange.Device() != nil {
		if m.gpu, err = newGPU(ctx, exchange, handle, cfg); err != nil {
			return nil, err
		}
	}
	m.own, m.sum = make([]float32, cfg.denseSize()+1), make([]float32, cfg.denseSize()+1)
	m.dense, m.experts = newParameters(m.sum[:cfg.denseSize()]), newParameters(make([]float32,
		cfg.Layers*local*cfg.expertSize()))
	m.weights = cfg.dense(m.dense.value)
	rng := rand.New(rand.NewPCG(cfg.Seed, 1<<62)) // samples have the streams from 0
	fill(m.weights.embed, rng, 1/math.Sqrt(float64(cfg.Context)))
	fill(m.weights.routers, rng, 1/math.Sqrt(float64(cfg.Hidden)))
	fill(m.weights.out, rng, 0.1/math.Sqrt(float64(cfg.Hidden)))
	for i := range cfg.Layers {
		l := &layer{cfg: cfg, router: rows(m.weights.routers, i*cfg.Hidden, cfg.Hidden)}
		if from, n := i*local*cfg.expertSize(), local*cfg.expertSize(); m.gpu != nil {
			l.backend = &gpuBackend{
				gpu: m.gpu, values: m.experts.value[from : from+n],
				grads: m.experts.grad[from : from+n], y: m.gpu.y[i], hidden: m.gpu.hidden[i],
			}
		} else {
			l.backend = &hostBackend{handle: handle}
		}
		for e := range local {
			x := cfg.expert(m.experts.value, i*local+e)
			rng := rand.New(rand.NewPCG(cfg.Seed, 1<<63+uint64(i*cfg.Experts+comm.Rank()*local+e))) // the same wherever it lives
			fill(x.up, rng, math.Sqrt(2/float64(cfg.Hidden)))
			fill(x.down, rng, 1/math.Sqrt(float64(cfg.Inner*cfg.Layers)))
			l.experts, l.grads = append(l.experts, x), append(l.grads, cfg.expert(m.experts.grad, i*local+e))
		}
		m.layers = append(m.layers, l)
	}
	return m, nil
}

// close frees memory outside of the host's.
func (m *model) close() error {
	var err error
	if m.gpu != nil {
		err = m.gpu.close()
	}
	return errors.Join(err, m.handle.Close())
}

// forward returns the loss of a micro-batch: the sum over its tokens, in nats, divided by the
// tokens of the step.
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

// backward sets g to the gradients of that loss, and adds those of the experts of this rank to
// theirs.
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

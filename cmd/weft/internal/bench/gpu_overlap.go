package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/matmul"
)

// Overlap measures what exchanges lose where their GPUs multiply matrices meanwhile, and what the
// products lose. Of [GPUs] it heeds Contexts, Ranks, Operations, Replays, Deadline and Cache.
type Overlap struct {
	GPUs
	Product matmul.Shape
}

// OverlapRow is one operation of one shape beside products: a line of --json. Keys are stable; new
// ones may be added. Times are of the slowest rank of each run, the median over runs.
type OverlapRow struct {
	Op       string `json:"op"`     // dispatch, combine
	Engine   string `json:"engine"` // gpu
	Contract string `json:"contract"`
	Ranks    int    `json:"ranks"`
	GPUs     int    `json:"gpus"`
	Tokens   int    `json:"tokens"` // per rank
	Hidden   int    `json:"hidden"`
	TopK     int    `json:"topk"`
	Experts  int    `json:"experts"`
	DType    string `json:"dtype"`
	Layout   string `json:"layout"`
	SMs      int    `json:"sms"`      // asked for; 0: the library's choice
	SMsUsed  int    `json:"sms_used"` // by the operation's kernel
	GPUSMs   int    `json:"gpu_sms"`  // that a GPU has

	Operations int `json:"operations"` // in a run
	Replays    int `json:"replays"`    // runs that were timed, of each kind

	Alone    float64 `json:"alone_us"`  // an operation that has the GPU to itself
	Beside   float64 `json:"beside_us"` // beside products
	Slowdown float64 `json:"slowdown"`  // beside_us over alone_us

	Product         string  `json:"product"`           // rows x columns x what is summed over
	ProductAlone    float64 `json:"product_alone_us"`  // a product that has the GPU to itself
	ProductBeside   float64 `json:"product_beside_us"` // beside operations
	ProductSlowdown float64 `json:"product_slowdown"`
	TFlops          float64 `json:"product_tflops"` // alone
	// gpu_sms over what sms_used leaves of them: a product's that loses these and nothing else
	Share float64 `json:"sm_slowdown"`

	// what was not timed went on for as long as what was: else the slow-downs are lower bounds
	Covered  bool     `json:"covered"`
	Verified bool     `json:"verified"` // what came of both was right, each time
	Problems []string `json:"problems,omitempty"`
}

// Runs in which one of the two is timed have so much of the other, by the times that each takes
// alone.
const cover = 3

// mostProducts keeps what a stream is given at once below what its queue holds.
const mostProducts = 256

// Measure measures dispatches and combines of the shapes, one after the other, and calls each with
// every row, from one goroutine at a time. Whether the outputs were right is in the row; an error
// means that something could not be measured.
func (o Overlap) Measure(ctx context.Context, shapes []EP, each func(OverlapRow) error) error {
	o.Samples = 2 // events, of the exchanges and of the products
	g, err := o.settled()
	if err != nil {
		return err
	}
	for _, s := range shapes {
		if _, err := s.DeviceSpec(g.Ranks); err != nil {
			return err
		}
	}
	return g.together(ctx, func(ctx context.Context, m *gpuRank) error {
		r := &overlapRank{gpuRank: m}
		var c closing
		err := r.begin(ctx, o.Product, &c)
		if err == nil {
			err = m.each(ctx, shapes, func(ctx context.Context) error { return r.overlaps(ctx, each) })
		}
		return errors.Join(err, c.all())
	})
}

// overlapRank is one rank of them.
type overlapRank struct {
	*gpuRank
	compute *cuda.Stream
	product *matmul.Product
	perOne  time.Duration // a product, alone
}

// begin makes the product, and has the exchanges in the communicator's stream, whose kernels do not
// stand behind those of others.
func (r *overlapRank) begin(ctx context.Context, s matmul.Shape, c *closing) (err error) {
	r.stream = r.comm.Device().Stream()
	r.work = weft.StreamOf(r.stream)
	if r.compute, err = r.context.NewStream(cuda.StreamOptions{}); err != nil {
		return err
	}
	c.add(r.compute.Close)
	if r.product, err = matmul.New(ctx, r.context, r.Cache, s, uint64(r.me)); err != nil {
		return err
	}
	c.add(r.product.Close)
	if err := r.meet(nil); err != nil { // all have theirs
		return err
	}
	took, err := r.runs(ctx, nil, 0, 8)
	r.perOne = took.product / 8
	return err
}

// overlaps measures a dispatch and a combine.
func (r *overlapRank) overlaps(ctx context.Context, each func(OverlapRow) error) (err error) {
	var c closing
	defer func() { err = errors.Join(err, c.all()) }()
	if err := r.setUp(ctx, &c); err != nil {
		return err
	}
	there, back := r.moves(&r.batch)
	for _, o := range []operation{r.dispatches(ctx, there), r.combines(ctx, back)} {
		row, err := r.overlap(ctx, o)
		if err != nil {
			return err
		}
		if r.me == 0 {
			if err := each(row); err != nil {
				return err
			}
		}
	}
	return r.meet(nil)
}

// overlap times an operation alone and beside products, and those beside it.
func (r *overlapRank) overlap(ctx context.Context, o operation) (row OverlapRow, err error) {
	r.problem = ""
	s := r.handle.Spec()
	row = OverlapRow{
		Op: o.name, Engine: "gpu", Contract: r.cfg.Contract(), Ranks: r.ranks,
		GPUs: min(r.ranks, len(r.Contexts)), Tokens: r.cfg.Tokens, Hidden: s.Hidden,
		TopK: s.TopK, Experts: s.Experts, DType: s.Payload.String(), Layout: s.Layout.String(), SMs: s.SMs,
		SMsUsed: o.sms, GPUSMs: r.comm.Device().SMs(),
		Operations: r.Operations, Replays: r.Replays, Product: r.product.String(),
	}
	alone, err := r.verified(ctx, o, 1, 0)
	if err != nil {
		return row, err
	}
	// Every rank sees the same times, and comes to the same numbers.
	products := min(max(1, int(alone.exchange/max(r.perOne, 1))), mostProducts/cover)
	beside, err := r.verified(ctx, o, 1, cover*products)
	if err != nil {
		return row, err
	}
	loaded, err := r.verified(ctx, o, cover, products)
	if err != nil {
		return row, err
	}
	each := func(d time.Duration, n int) float64 { return measure.Micros(d) / float64(n) }
	row.Alone, row.Beside = each(alone.exchange, r.Operations), each(beside.exchange, r.Operations)
	row.ProductAlone, row.ProductBeside = each(r.perOne, 1), each(loaded.product, products)
	row.Slowdown, row.ProductSlowdown = ratio(row.Beside, row.Alone), ratio(row.ProductBeside, row.ProductAlone)
	row.TFlops = ratio(r.product.Flops(), row.ProductAlone) / 1e6
	row.Share = ratio(float64(row.GPUSMs), float64(row.GPUSMs-row.SMsUsed))
	row.Covered = beside.product >= beside.exchange && loaded.exchange >= loaded.product
	problems, err := gather(r.team, r.me, r.problem)
	row.Verified = err == nil
	for _, p := range problems {
		if p != "" {
			row.Problems, row.Verified = append(row.Problems, p), false
		}
	}
	return row, err
}

// ratio is 0 where there is none.
func ratio(a, b float64) float64 {
	if q := a / b; !math.IsNaN(q) && !math.IsInf(q, 0) {
		return q
	}
	return 0
}

// bothTook is how long the two parts of a run took.
type bothTook struct{ exchange, product time.Duration }

// verified makes runs of so many graphs of the operation, with new operands, beside so many
// products, and checks what the last of each left.
func (r *overlapRank) verified(ctx context.Context, o operation, graphs, products int) (took bothTook, err error) {
	if err := errors.Join(o.renew(), r.product.Spoil(r.compute), r.comm.Wait(ctx, r.work), r.compute.Wait(ctx),
		r.meet(nil)); err != nil {
		return took, err
	}
	g, err := r.graph(r.Operations, o.run)
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if took, err = r.runs(ctx, func() error {
		for range graphs {
			if err := g.Launch(r.stream); err != nil {
				return err
			}
		}
		return nil
	}, graphs, products); err != nil {
		return took, err
	}
	if products > 0 {
		if err := r.product.Check(); err != nil {
			r.complain("%v", err)
		}
	}
	return took, o.check()
}

// runs times exchanges and products that begin together, some times, and gives the medians of the
// slowest ranks.
func (r *overlapRank) runs(ctx context.Context, exchange func() error, graphs, products int) (took bothTook,
	err error,
) {
	var all [2][]time.Duration
	for i := range warmups + r.Replays {
		times, err := r.run(ctx, exchange, graphs, products)
		if err != nil {
			return took, err
		}
		if i >= warmups {
			all[0], all[1] = append(all[0], times.exchange), append(all[1], times.product)
		}
	}
	for i, to := range []*time.Duration{&took.exchange, &took.product} {
		s, _, err := r.summary(all[i])
		if err != nil {
			return took, err
		}
		*to = s.P50
	}
	return took, nil
}

// run holds both streams at the gate until everything is enqueued on every rank. Zero of either is
// none of it.
func (r *overlapRank) run(ctx context.Context, exchange func() error, graphs, products int) (took bothTook, err error) {
	r.turn++
	if products > 0 {
		if err := errors.Join(r.door.Hold(r.compute, r.turn), r.starts[1].Record(r.compute)); err != nil {
			return took, err
		}
		for range products {
			if err := r.product.Start(r.compute); err != nil {
				return took, err
			}
		}
		if err := r.ends[1].Record(r.compute); err != nil {
			return took, err
		}
	}
	if graphs > 0 {
		if err := errors.Join(r.door.Hold(r.stream, r.turn), r.starts[0].Record(r.stream), exchange(),
			r.ends[0].Record(r.stream)); err != nil {
			return took, err
		}
	}
	if err := r.meet(func() { r.gate.Open(r.turn) }); err != nil {
		return took, err
	}
	if err := errors.Join(r.comm.Wait(ctx, r.work), r.compute.Wait(ctx)); err != nil {
		return took, err
	}
	if graphs > 0 {
		if took.exchange, err = r.ends[0].Since(r.starts[0]); err != nil {
			return took, err
		}
	}
	if products > 0 {
		took.product, err = r.ends[1].Since(r.starts[1])
	}
	return took, err
}

package ep

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/closer"
	"github.com/weftgo/weft/internal/matmul"
)

// Overlap measures the slow-down of exchanges while their GPUs multiply matrices, and that of the
// products. Of [timing.GPUs] it heeds Contexts, Ranks, Operations, Replays, Deadline and Cache.
type Overlap struct {
	timing.GPUs
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

	Product         string  `json:"product"`           // rows x columns x the summed dimension
	ProductAlone    float64 `json:"product_alone_us"`  // a product that has the GPU to itself
	ProductBeside   float64 `json:"product_beside_us"` // beside operations
	ProductSlowdown float64 `json:"product_slowdown"`
	TFlops          float64 `json:"product_tflops"` // alone
	// gpu_sms over the SMs that sms_used leaves: the slow-down of a product that loses only these
	Share float64 `json:"sm_slowdown"`

	// the untimed side ran as long as the timed one: else the slow-downs are lower bounds
	Covered  bool     `json:"covered"`
	Verified bool     `json:"verified"` // both results were right, each time
	Problems []string `json:"problems,omitempty"`
}

// Runs in which one of the two is timed have so much of the other, by the times that each takes
// alone.
const cover = 3

// mostProducts keeps the work that a stream gets at once below the size of its queue.
const mostProducts = 256

// Measure measures dispatches and combines of the shapes, one after the other, and calls each with
// every row, from one goroutine at a time. Whether the outputs were right is in the row; an error
// means that something could not be measured.
func (o Overlap) Measure(ctx context.Context, shapes []Shape, each func(OverlapRow) error) error {
	g, err := withDefaults(o.GPUs, shapes)
	if err != nil {
		return err
	}
	return g.Run(ctx, func(ctx context.Context, t *timing.GPU) error {
		r := &overlapRank{gpuRank: (&GPUs{}).rank(t)}
		var c closer.Stack
		err := r.begin(ctx, o.Product, &c)
		if err == nil {
			err = r.each(ctx, shapes, func(ctx context.Context) error { return r.overlaps(ctx, each) })
		}
		return errors.Join(err, c.Close())
	})
}

// overlapRank is one rank of them.
type overlapRank struct {
	*gpuRank
	compute *cuda.Stream
	product *matmul.Product
	perOne  time.Duration  // a product, alone
	problem timing.Verdict // the first error
}

// begin makes the product, and puts the exchanges in the communicator's stream, whose kernels do
// not wait behind others'.
func (r *overlapRank) begin(ctx context.Context, s matmul.Shape, c *closer.Stack) (err error) {
	r.Use(r.Comm.Device().Stream())
	if r.compute, err = r.Context.NewStream(cuda.StreamOptions{}); err != nil {
		return err
	}
	c.Add(r.compute.Close)
	if r.product, err = matmul.New(ctx, r.Context, r.Cache, s, uint64(r.me)); err != nil {
		return err
	}
	c.Add(r.product.Close)
	if err := r.Meet(nil); err != nil { // all have theirs
		return err
	}
	took, err := r.both(ctx, nil, 8)
	r.perOne = took.product / 8
	return err
}

// overlaps measures a dispatch and a combine.
func (r *overlapRank) overlaps(ctx context.Context, each func(OverlapRow) error) (err error) {
	var c closer.Stack
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := r.setUp(ctx, &c); err != nil {
		return err
	}
	there, back := r.moves(&r.batch)
	for _, o := range []timing.Operation{r.dispatches(ctx, there), r.combines(ctx, back)} {
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
	return r.Meet(nil)
}

// overlap times an operation alone and beside products, and those beside it.
func (r *overlapRank) overlap(ctx context.Context, o timing.Operation) (row OverlapRow, err error) {
	r.problem = timing.Verdict{}
	s := r.handle.Spec()
	row = OverlapRow{
		Op: o.Name, Engine: "gpu", Contract: r.cfg.Contract(), Ranks: r.ranks,
		GPUs: min(r.ranks, len(r.Contexts)), Tokens: r.cfg.Tokens, Hidden: s.Hidden,
		TopK: s.TopK, Experts: s.Experts, DType: s.Payload.String(), Layout: s.Layout.String(), SMs: s.SMs,
		SMsUsed: o.SMs, GPUSMs: r.Comm.Device().SMs(),
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
	row.Verified, row.Problems, _, err = r.Verdict(r.problem)
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

// verified runs so many graphs of the operation, with new operands, beside so many products, and
// checks the results of the last of each.
func (r *overlapRank) verified(ctx context.Context, o timing.Operation, graphs, products int) (took bothTook,
	err error,
) {
	if err := errors.Join(o.Renew(true), r.product.Spoil(r.compute), r.Comm.Wait(ctx, r.Work), r.compute.Wait(ctx),
		r.Meet(nil)); err != nil {
		return took, err
	}
	g, err := r.Graph(r.Operations, o.Run)
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if took, err = r.both(ctx, func() error {
		for range graphs {
			if err := g.Launch(r.Stream); err != nil {
				return err
			}
		}
		return nil
	}, products); err != nil {
		return took, err
	}
	err = o.Check()
	if products > 0 && err == nil {
		if wrong := r.product.Check(); wrong != nil {
			err = timing.Wrongf("%v", wrong)
		}
	}
	return took, r.problem.Take(err)
}

// both times exchanges and so many products that begin together. No exchange, or no product, is
// nothing that is timed.
func (r *overlapRank) both(ctx context.Context, exchange func() error, products int) (took bothTook, err error) {
	spans := []timing.Span{{Stream: r.Stream, Enqueue: exchange}, {Stream: r.compute}}
	if products > 0 {
		spans[1].Enqueue = func() error {
			for range products {
				if err := r.product.Start(r.compute); err != nil {
					return err
				}
			}
			return nil
		}
	}
	times, err := r.Replay(ctx, spans...)
	if err == nil {
		took.exchange, took.product = times[0], times[1]
	}
	return took, err
}

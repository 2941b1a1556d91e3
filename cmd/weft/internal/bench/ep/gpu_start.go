package ep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/closer"
)

// Start measures how long ranks on GPUs, which are goroutines of this process, take from nothing to
// the end of their first dispatch. Zeros are defaults.
type Start struct {
	Contexts []*cuda.Context // rank r is on Contexts[r % len(Contexts)]
	Ranks    int             // 0: one for each context
	Rounds   int             // after the first, with all kernels in the cache; 0: 5
	Deadline time.Duration   // of each wait on a GPU; 0: 10 s
	Kernels  kernel.Options  // of the cache of each round
}

// MostRounds is how many there may be after the first.
const MostRounds = 100

// The values of StartRow.Op.
const (
	Driver     = "driver"      // cuInit and the contexts, which all starts come after
	ColdStart  = "start-cold"  // the first round of the process, which had kernels to compile
	FirstStart = "start-first" // the first round of the process, which had none
	WarmStart  = "start-warm"  // the rounds after it
)

// StartRow is how long a start took: a line of --json. Keys are stable; new ones may be added.
// Times are medians over the rounds, of the slowest rank of each.
type StartRow struct {
	Op     string `json:"op"`
	Engine string `json:"engine"` // gpu
	Ranks  int    `json:"ranks"`
	GPUs   int    `json:"gpus"`
	Rounds int    `json:"rounds"`

	P50     float64 `json:"p50_us"` // from nothing to the end of the first dispatch
	Max     float64 `json:"max_us"`
	Slowest int     `json:"slowest_rank"` // most often

	*Stages // nil for the driver
}

// Stages are the stages of a start, and its operation.
type Stages struct {
	Join        float64 `json:"join_us"`
	JoinMax     float64 `json:"join_max_us"`
	Handle      float64 `json:"handle_us"` // windows; kernels, from the cache or compiled
	HandleMax   float64 `json:"handle_max_us"`
	Dispatch    float64 `json:"dispatch_us"` // from the call until the host sees its end
	DispatchMax float64 `json:"dispatch_max_us"`

	Contract string `json:"contract"`
	Tokens   int    `json:"tokens"`   // per rank
	Capacity int    `json:"capacity"` // the most that a rank may have: by it windows are made
	Hidden   int    `json:"hidden"`
	TopK     int    `json:"topk"`
	Experts  int    `json:"experts"`
	DType    string `json:"dtype"`
	Layout   string `json:"layout"`
}

// The stages of a start, and their sum.
const (
	joining = iota
	handling
	dispatching
	altogether
	stages
)

// round is the state that the ranks of one round share.
type round struct {
	meetings []bootstrap.Bootstrap
	kernels  *kernel.Cache // of its own, because a cache keeps kernels in memory
	compiled atomic.Bool   // something was not in the cache's directories
}

func newRound(ranks int, o kernel.Options) (*round, error) {
	r, open := &round{}, o.Compiler
	if open == nil {
		open = kernel.NVRTC
	}
	o.Compiler = func() (kernel.Compiler, error) {
		r.compiled.Store(true)
		return open()
	}
	r.kernels = kernel.New(o)
	var err error
	r.meetings, err = bootstrap.NewInProcess(ranks)
	return r, err
}

// Measure starts again and again, and calls each with the row of the first round and with that of
// the others, from one goroutine. A rank that received other rows than the routing demands is an
// error, and so is a round after the first that compiles.
func (s Start) Measure(ctx context.Context, shape Shape, each func(StartRow) error) error {
	g, err := timing.GPUs{Contexts: s.Contexts, Ranks: s.Ranks, Deadline: s.Deadline}.WithDefaults()
	if err != nil {
		return err
	}
	s.Rounds = cmp.Or(s.Rounds, 5)
	if err := timing.Within("--rounds", s.Rounds, 1, MostRounds); err != nil {
		return err
	}
	spec, err := shape.DeviceSpec(g.Ranks)
	if err != nil {
		return err
	}
	gen, err := routing.New(routing.Config{
		Kind: shape.Routing, Seed: shape.Seed, Ranks: g.Ranks,
		Experts: shape.Experts, TopK: shape.TopK,
	})
	if err != nil {
		return err
	}
	ids, weights := make([][]int32, g.Ranks), make([][]float32, g.Ranks)
	for r := range g.Ranks {
		ids[r], weights[r] = gen.Route(r, shape.Tokens)
	}
	rounds := make([]*round, 1+s.Rounds)
	for i := range rounds {
		if rounds[i], err = newRound(g.Ranks, s.Kernels); err != nil {
			return err
		}
	}
	return timing.RunTeam(ctx, g.Ranks, func(ctx context.Context, t *timing.Team, me int) error {
		m := &startRank{gpuRank: gpuRank{
			GPU:      &timing.GPU{GPUs: &g, Team: t, Me: me, Context: g.Contexts[me%len(g.Contexts)]},
			batch:    batch{ids: ids, weights: weights[me]},
			expected: expected{me: me, ranks: g.Ranks, cfg: shape, spec: spec},
		}}
		return m.repeat(ctx, rounds, each)
	})
}

// startRank is one rank that starts again and again.
type startRank struct {
	gpuRank
	arriving int // rows
}

// repeat starts in every round.
func (m *startRank) repeat(ctx context.Context, rounds []*round, each func(StartRow) error) (err error) {
	var c closer.Stack
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := m.prepare(&c); err != nil {
		return err
	}
	var times [stages][]time.Duration
	for i, r := range rounds {
		took, err := m.start(ctx, r)
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		op, compiled := WarmStart, r.compiled.Load()
		switch {
		case i == 0 && compiled:
			op = ColdStart
		case i == 0:
			op = FirstStart
		case compiled:
			return fmt.Errorf("round %d: kernels were compiled again: see that the kernel cache %q can be "+
				"written, or name another in WEFT_CACHE_DIR", i, r.kernels.Dir())
		}
		for s := range took {
			times[s] = append(times[s], took[s])
		}
		if i == 0 || i == len(rounds)-1 {
			if err := m.report(op, times, each); err != nil {
				return err
			}
			times = [stages][]time.Duration{}
		}
	}
	return nil
}

// prepare makes the things that a caller has before it starts: a stream, and the tensors of a
// dispatch on it.
func (m *startRank) prepare(c *closer.Stack) (err error) {
	m.eachRow(&m.batch, func(_, _, _, _ int) { m.arriving++ })
	stream, err := m.Context.NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	c.Add(stream.Close)
	m.Use(stream)
	n, k := m.cfg.Tokens, m.cfg.TopK
	if m.batch.topk, err = upload(m, c, m.batch.ids[m.me], weft.Int32, n, k); err != nil {
		return err
	}
	if m.batch.weight, err = upload(m, c, m.batch.weights, weft.Float32, n, k); err != nil {
		return err
	}
	m.x.Data, err = upload(m, c, make([]byte, n*m.cfg.Hidden*m.spec.Output.Size()), m.spec.Output, n, m.cfg.Hidden)
	return err
}

// upload copies a host tensor to the GPU.
func upload[T any](m *startRank, c *closer.Stack, from []T, d weft.DType, shape ...int) (weft.Tensor, error) {
	t, err := m.tensor(c, d, shape...)
	if err != nil {
		return t, err
	}
	return t, m.Context.Upload(t.Pointer(), unsafe.Slice((*byte)(unsafe.Pointer(&from[0])), t.Bytes()))
}

// start goes from nothing to the end of the first dispatch, once all have come, and leaves nothing
// behind.
func (m *startRank) start(ctx context.Context, r *round) (took [stages]time.Duration, err error) {
	var c closer.Stack
	var comm *weft.Comm
	defer func() {
		if err != nil {
			m.Fail(m.me, err) // before the others can fail for it, and be blamed
			if comm != nil {
				comm.Abort() // the others' waits on their GPUs end
			}
		}
		err = errors.Join(err, c.Close())
	}()
	options := []weft.Option{
		weft.WithBootstrap(r.meetings[m.me]), weft.WithDevice(m.Context),
		weft.WithDeadline(m.Deadline), weft.WithKernels(r.kernels),
	}
	if err := m.Meet(nil); err != nil {
		return took, err
	}
	began := time.Now()
	ends := func(stage int) {
		now := time.Since(began)
		took[stage], took[altogether] = now-took[altogether], now
	}
	if comm, err = weft.Join(ctx, options...); err != nil {
		return took, err
	}
	ends(joining)
	c.Add(comm.Close)
	handle, err := ep.NewHandle(ctx, comm, m.spec)
	if err != nil {
		return took, err
	}
	ends(handling)
	c.Add(handle.Close)
	received, err := handle.Dispatch(ctx, m.Work, ep.DispatchArgs{
		TopK: m.batch.topk, Weights: m.batch.weight, Rows: m.x,
	})
	if err != nil {
		return took, err
	}
	if err := comm.Wait(ctx, m.Work); err != nil {
		return took, err
	}
	ends(dispatching)
	if n := received.Received(); n != m.arriving {
		return took, fmt.Errorf("dispatch: %d rows reported, %d sent", n, m.arriving)
	}
	return took, m.Meet(nil) // a rank that leaves first must not spoil the others' dispatch
}

// report summarises all ranks' times.
func (m *startRank) report(op string, times [stages][]time.Duration, each func(StartRow) error) error {
	var s [stages]measure.Summary
	for i := range s {
		var err error
		if s[i], _, err = m.Summarize(m.Me, times[i]); err != nil {
			return err
		}
	}
	if m.me > 0 {
		return nil
	}
	us := measure.Micros
	return each(StartRow{
		Op: op, Engine: ep.GPUEngine.String(), Ranks: m.ranks, GPUs: min(m.ranks, len(m.Contexts)),
		Rounds: s[altogether].Iterations,
		P50:    us(s[altogether].P50), Max: us(s[altogether].Max), Slowest: s[altogether].Slowest,
		Stages: &Stages{
			Join: us(s[joining].P50), JoinMax: us(s[joining].Max), Handle: us(s[handling].P50), HandleMax: us(s[handling].Max),
			Dispatch: us(s[dispatching].P50), DispatchMax: us(s[dispatching].Max),
			Contract: m.cfg.Contract(), Tokens: m.cfg.Tokens, Capacity: m.spec.MaxTokens, Hidden: m.spec.Hidden,
			TopK: m.spec.TopK, Experts: m.spec.Experts,
			DType: m.spec.Payload.String(), Layout: m.spec.Layout.String(),
		},
	})
}

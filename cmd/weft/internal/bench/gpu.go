package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/link"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/device"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/ep"
)

// GPUs measures expert parallelism between ranks on GPUs, which are goroutines of this process.
// Zeros stand for what most want.
type GPUs struct {
	Contexts []*cuda.Context // rank r is on Contexts[r % len(Contexts)]
	Ranks    int             // 0: one for each context
	Brief    bool            // time graphs alone, and those that begin together
	Phases   bool            // measure Prepare, and Dispatch by a routing that is known, apart too

	Gradients bool // measure CombineBackward and DispatchBackward too

	Operations int           // in a graph; 0: 100
	Replays    int           // of a graph, that are timed; 0: 7
	Samples    int           // of single operations; 0: 256
	Deadline   time.Duration // of each wait on a GPU; 0: 10 s
	Cache      *kernel.Cache // nil: the user's

	patience time.Duration // of the gate, until the host has enqueued everything
}

// What GPUs can be asked for, and how they are asked.
const (
	MostOperations = 2000 // in a graph
	MostReplays    = 1000
	warmups        = 2   // replays before those that are timed
	tailReplays    = 100 // for a percentile, unless they take longer than
	tailTime       = 200 * time.Millisecond
	together       = 64 // single operations that are enqueued at a time: a stream's queue holds about a thousand entries
	coldOperations = 32 // in a graph that empties the cache before each
	coldReplays    = 7  // of it at most: emptying takes longer than what is timed
)

func (g GPUs) settled() (GPUs, error) {
	g.Ranks = cmp.Or(g.Ranks, len(g.Contexts))
	g.Operations, g.Replays, g.Samples = cmp.Or(g.Operations, 100), cmp.Or(g.Replays, 7), cmp.Or(g.Samples, 256)
	g.Deadline, g.patience = cmp.Or(g.Deadline, 10*time.Second), cmp.Or(g.patience, 2*time.Second)
	if g.Cache == nil {
		g.Cache = kernel.New(kernel.Options{})
	}
	if len(g.Contexts) == 0 {
		return g, errors.New("no GPUs")
	}
	return g, errors.Join(within("ranks", g.Ranks, 1, device.MaxRanks),
		within("operations", g.Operations, 1, MostOperations),
		within("replays", g.Replays, 1, MostReplays), within("samples", g.Samples, 1, mostIterations))
}

// Rows is how many each shape gives.
func (g GPUs) Rows() int {
	n := 2
	if g.Phases {
		n += 2
	}
	if g.Gradients {
		n += 2
	}
	return n
}

// DeviceSpec is Spec for GPUs, where the counts stay. It says what is wrong with the shape, if
// anything.
func (e EP) DeviceSpec(ranks int) (ep.Spec, error) {
	e.Counts = ep.DeviceCounts.String()
	if e.Tokens < 1 {
		return ep.Spec{}, fmt.Errorf("tokens %d: want at least 1", e.Tokens)
	}
	if e.SMs < 0 || e.Capacity < 0 {
		return ep.Spec{}, fmt.Errorf("%d SMs, a capacity of %d: want at least 0", e.SMs, e.Capacity)
	}
	s, err := e.Spec(ranks)
	if err != nil {
		return s, err
	}
	return s, s.ValidateOn(ep.GPUEngine, ranks)
}

// Measure measures the shapes one after the other, and calls each with every row, from one
// goroutine at a time. Whether the outputs were right is in the row; an error means that something
// could not be measured.
func (g GPUs) Measure(ctx context.Context, shapes []EP, each func(GPURow) error) error {
	g, err := g.settled()
	if err != nil {
		return err
	}
	for _, s := range shapes {
		if _, err := s.DeviceSpec(g.Ranks); err != nil {
			return err
		}
	}
	return g.together(ctx, func(ctx context.Context, m *gpuRank) error {
		if err := m.timeNothing(ctx); err != nil {
			return err
		}
		return m.each(ctx, shapes, func(ctx context.Context) error { return m.shape(ctx, each) })
	})
}

// together runs body on all ranks, which have joined each other and opened what every measurement
// uses. Settled GPUs are wanted.
func (g *GPUs) together(ctx context.Context, body func(ctx context.Context, m *gpuRank) error) (err error) {
	gate, err := link.NewGate(g.Contexts[0], g.patience)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	meetings, err := bootstrap.NewInProcess(g.Ranks)
	if err != nil {
		return err
	}
	t := newTeam(ctx, g.Ranks)
	var all sync.WaitGroup
	for r := range g.Ranks {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			m := &gpuRank{
				GPUs: g, team: t, gate: gate, context: g.Contexts[r%len(g.Contexts)],
				expected: expected{me: r, ranks: g.Ranks},
			}
			if err := m.serve(t.ctx, meetings[r], body); err != nil {
				t.fail(r, err)
			}
		})
	}
	all.Wait()
	return t.end()
}

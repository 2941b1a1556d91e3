package timing

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// GPUs says between which ranks on GPUs operations are timed, and how often. The ranks are
// goroutines of this process. Zeros are defaults.
type GPUs struct {
	Contexts []*cuda.Context // rank r is on Contexts[r % len(Contexts)]
	Ranks    int             // 0: one for each context
	Ways     Ways            // of timing; 0: all
	Brief    bool            // time graphs alone, and those that begin together

	Operations int           // in a graph; 0: 100
	Replays    int           // of a graph, that are timed; 0: 7
	Samples    int           // of single operations; 0: 256
	Deadline   time.Duration // of each wait on a GPU; 0: 10 s
	Patience   time.Duration // of the gate, until the host has enqueued everything; 0: 2 s
	Cache      *kernel.Cache // nil: the user's
}

// Ways are how operations are timed: see [Figures].
type Ways uint8

const (
	InGraph Ways = 1 << iota // many in a graph
	Alone                    // one in a graph
	Eager                    // without a graph
	Cold                     // in a graph, with caches emptied before each
	allWays = 1<<iota - 1
)

// Limits.
const (
	MostOperations = 2000 // in a graph
	MostReplays    = 1000
	warmups        = 2   // replays before those that are timed
	tailReplays    = 100 // for a percentile, unless they take longer than
	tailTime       = 200 * time.Millisecond
	together       = 64 // single operations that are enqueued at a time: a stream's queue holds about a thousand entries
	coldOperations = 32 // in a graph that empties the cache before each
	coldReplays    = 7  // of it at most: emptying takes longer than the timed work
)

// WithDefaults is g with defaults filled in, or an error.
func (g GPUs) WithDefaults() (GPUs, error) {
	g.Ranks = cmp.Or(g.Ranks, len(g.Contexts))
	g.Operations, g.Replays, g.Samples = cmp.Or(g.Operations, 100), cmp.Or(g.Replays, 7), cmp.Or(g.Samples, 256)
	if g.Ways = cmp.Or(g.Ways, allWays); g.Brief {
		g.Ways = InGraph
	}
	g.Deadline, g.Patience = cmp.Or(g.Deadline, 10*time.Second), cmp.Or(g.Patience, 2*time.Second)
	if g.Cache == nil {
		g.Cache = kernel.New(kernel.Options{})
	}
	if len(g.Contexts) == 0 {
		return g, errors.New("no GPUs")
	}
	return g, errors.Join(Within("--ranks", g.Ranks, 1, device.MaxRanks),
		Within("--operations", g.Operations, 1, MostOperations),
		Within("--replays", g.Replays, 1, MostReplays), Within("samples", g.Samples, 1, MostIterations))
}

// Run runs body on all ranks, after they have joined and opened the objects that every measurement
// uses. They have their defaults.
func (g *GPUs) Run(ctx context.Context, body func(ctx context.Context, m *GPU) error) (err error) {
	gate, err := newGate(g.Contexts[0], g.Patience)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	meetings, err := bootstrap.NewInProcess(g.Ranks)
	if err != nil {
		return err
	}
	return RunTeam(ctx, g.Ranks, func(ctx context.Context, t *Team, me int) error {
		m := &GPU{GPUs: g, Team: t, Me: me, Context: g.Contexts[me%len(g.Contexts)], gate: gate}
		return m.serve(ctx, meetings[me], body)
	})
}

package ep

import (
	"context"
	"fmt"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/ep"
)

// GPUs measures expert parallelism between ranks on GPUs.
type GPUs struct {
	timing.GPUs
	Phases    bool // measure Prepare, and Dispatch by a routing that is known, apart too
	Gradients bool // measure CombineBackward and DispatchBackward too
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
func (e Shape) DeviceSpec(ranks int) (ep.Spec, error) {
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
	return s, inFlags(s.ValidateOn(ep.GPUEngine, ranks))
}

// Measure measures the shapes one after the other, and calls each with every row, from one
// goroutine at a time. Whether the outputs were right is in the row; an error means that something
// could not be measured.
func (g GPUs) Measure(ctx context.Context, shapes []Shape, each func(GPURow) error) error {
	var err error
	if g.GPUs, err = withDefaults(g.GPUs, shapes); err != nil {
		return err
	}
	return g.Run(ctx, func(ctx context.Context, t *timing.GPU) error {
		m := g.rank(t)
		nothing, err := m.Nothing(ctx)
		if err != nil {
			return err
		}
		m.nothing = measure.Micros(nothing.P50)
		return m.each(ctx, shapes, func(ctx context.Context) error { return m.shape(ctx, each) })
	})
}

// withDefaults is the settings and shapes with defaults filled in, or an error.
func withDefaults(g timing.GPUs, shapes []Shape) (timing.GPUs, error) {
	g, err := g.WithDefaults()
	for _, s := range shapes {
		if err == nil {
			_, err = s.DeviceSpec(g.Ranks)
		}
	}
	return g, err
}

// rank measures on a rank.
func (g *GPUs) rank(t *timing.GPU) *gpuRank {
	return &gpuRank{
		GPU: t, expected: expected{me: t.Me, ranks: t.Ranks}, phases: g.Phases, gradients: g.Gradients,
	}
}

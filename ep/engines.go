package ep

import (
	"context"

	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/internal/gpu"
	epproxied "github.com/weftgo/weft/ep/internal/proxied"
	"github.com/weftgo/weft/ep/internal/pull"
	"github.com/weftgo/weft/ep/spec"
)

// newEngine makes the engine of a handle. It is collective.
func newEngine(ctx context.Context, b *spec.Base) (spec.RowEngine, error) {
	switch {
	case spec.EngineOf(b.Comm) == spec.HostEngine:
		return pull.NewHost(ctx, b)
	case proxied(b):
		return epproxied.New(ctx, b, pull.NewHost)
	}
	return gpu.NewGPU(ctx, b, gradientsBetween)
}

// gradientsBetween brings gradients between hosts where port channels carry the rows of GPUs.
func gradientsBetween(ctx context.Context, b *spec.Base, beside *enginegpu.Room) (gpu.Gradients, error) {
	back, err := epproxied.NewBack(ctx, b, pull.NewHost, beside)
	if err != nil {
		return nil, err
	}
	return back, nil
}

// proxied says whether a processor of each host moves the rows of a handle of GPUs.
func proxied(b *spec.Base) bool {
	return spec.EngineOf(b.Comm) == spec.GPUEngine && b.Comm.Operations().Spans() && !b.Spec.ThroughPorts(b.Comm.Size())
}

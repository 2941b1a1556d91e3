package ep

import (
	"context"

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
		return epproxied.New(ctx, b)
	}
	return gpu.NewGPU(ctx, b)
}

// proxied says whether a processor of each host moves the rows of a handle of GPUs.
func proxied(b *spec.Base) bool {
	return spec.EngineOf(b.Comm) == spec.GPUEngine && b.Comm.Operations().Spans() && !b.Spec.ThroughPorts(b.Comm.Size())
}

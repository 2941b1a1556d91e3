package ep

import (
	"context"

	"github.com/weftgo/weft/ep/internal/gpu"
	"github.com/weftgo/weft/ep/internal/pull"
	"github.com/weftgo/weft/ep/spec"
)

// newEngine makes the engine of a handle. It is collective.
func newEngine(ctx context.Context, b *spec.Base) (spec.RowEngine, error) {
	if spec.EngineOf(b.Comm) == spec.GPUEngine {
		return gpu.NewGPU(ctx, b)
	}
	return pull.NewHost(ctx, b)
}

package ep

import "context"

// newEngine makes the engine of a handle. It is collective.
func newEngine(ctx context.Context, b *Base) (RowEngine, error) {
	if engineOf(b.comm) == GPUEngine {
		return NewGPU(ctx, b)
	}
	return NewHost(ctx, b)
}

package executor

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/gpu"
	"github.com/weftgo/weft/plan/internal/host"
	"github.com/weftgo/weft/plan/internal/launch"
)

// newEngine makes the engine of the ranks' kind of memory. It is collective.
func newEngine(ctx context.Context, comm *weft.Comm) (launch.Engine, error) {
	if comm.Device() != nil {
		return gpu.New(ctx, comm, nil, false)
	}
	return host.New(ctx, comm)
}

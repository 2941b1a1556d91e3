package gpu

import (
	"context"
	"fmt"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// TestLoadsOnAllOrNoneOnEmulatedGPUs: a kernel that one rank cannot prepare is in no rank's place, nor is another one
// that was loaded with it.
func TestLoadsOnAllOrNoneOnEmulatedGPUs(t *testing.T) {
	o := Options{Staging: smallStaging, SMs: 2}
	engines(t, 2, cudatest.Config{}, o, func(ctx context.Context, e *Engine) error {
		var one, other enginegpu.Launch[barrierArgs]
		shape := e.config()
		if e.comm.Rank() == 1 {
			shape.Shared = 1 << 30
		}
		source := barrierSource(e.target())
		failed := e.load(ctx, into(&one, source, e.config(), barrierArgs{}), into(&other, source, shape, barrierArgs{}))
		if failed == nil || one.Launch != nil || other.Launch != nil {
			return fmt.Errorf("%w; loaded: %t, %t", failed, one.Launch != nil, other.Launch != nil)
		}
		return e.load(ctx, into(&one, source, e.config(), barrierArgs{}))
	})
}

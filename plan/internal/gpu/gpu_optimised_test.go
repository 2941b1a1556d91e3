package gpu_test

import (
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/optimizer"
)

// optimised builds a program's file, with two instances if that is faster by the model. It has no nop that the verifier
// passes it without.
func optimised(t *testing.T, p *plan.Plan) *plan.File {
	t.Helper()
	f, _, err := optimizer.Optimize(t.Context(), build(t, p), optimizer.Options{Instances: 2, Bytes: 64 << 10, Moves: 200})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOptimisedOnEmulatedGPUs(t *testing.T) {
	programs(t, emulatedKernels(t, 6, 7), few[1:5], optimised)
}

// TestOptimisedOnGPUs is the same on real ones, with larger messages.
func TestOptimisedOnGPUs(t *testing.T) {
	larger := launchOf{dtype: weft.Float16, chunk: 32 << 10, window: true}
	programs(t, ranktest.Real(t), append(few[:len(few):len(few)], larger), optimised)
}

package gpu

import (
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// allSpecs are the kernels of every encoding and type.
func allSpecs(t target) (all []kernel.Spec) {
	sources := []enginegpu.Source{
		barrierSource(t), directMoveSource(t), bulkMoveSource(t), moveLinesSource(t), messageSource(t), messageListSource(t),
		multicastMoveSource(t),
	}
	for e := words; e < encodings; e++ {
		sources = append(sources, moveSource(e, t), moveVSource(e, t), allGatherProgressSource(e, t),
			helpersBroadcastSource(e, t))
	}
	for d := weft.DType(1); int(d) < dtypes; d++ {
		if _, ok := arithmetic[d]; ok || d == weft.Bool {
			sources = append(sources, oneShotSource(d, t), twoShotSource(d, t), reduceScatterSource(d, t),
				reduceScatterVSource(d, t), directReduceSource(d, t), bulkReduceSource(d, t),
				helpersReduceSource(d, t), pushSource(d, t), relaxedSource(d, t))
		}
	}
	// One type for each kind of accumulator; the others differ in what all reductions have.
	for _, d := range []weft.DType{weft.BFloat16, weft.Float32, weft.Float64, weft.Int32, weft.Int64, weft.Bool} {
		sources = append(sources, reduceScatterReadySource(d, t))
	}
	for _, d := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
		sources = append(sources, multicastReduceSource(d, t), normOneShotSource(d, t), normTwoShotSource(d, t))
	}
	for _, s := range sources {
		all = append(all, s.Spec)
	}
	return all
}

// TestKernels compiles the kernels for four ranks, without a warning, and holds what they use of a GPU
// to testdata/kernels.txt.
func TestKernels(t *testing.T) {
	budget.Test(t, func(arch string) []kernel.Spec { return allSpecs(target{arch, 4}) })
}

package gpu

import (
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
)

// budgeted are the kernels of every encoding and type for four ranks.
func budgeted(arch string) []kernel.Spec {
	kinds := []weft.DType{weft.BFloat16, weft.Float32, weft.Float64, weft.Int32, weft.Int64, weft.Bool}
	// One type for each kind of accumulator; the others differ in what all reductions have.
	return slices.DeleteFunc(Kernels(arch, 4), func(s kernel.Spec) bool {
		return strings.HasPrefix(s.Name, "reduce-scatter when ready") &&
			!slices.ContainsFunc(kinds, func(d weft.DType) bool {
				return s.Key() == reduceScatterReadySource(d, target{arch, 4}).Spec.Key()
			})
	})
}

// TestKernels compiles the kernels for four ranks, without a warning, and holds what they use of a GPU
// to testdata/kernels.txt.
func TestKernels(t *testing.T) {
	budget.Test(t, budgeted)
}

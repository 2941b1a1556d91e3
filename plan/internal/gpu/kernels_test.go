package gpu

import (
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
)

// TestKernels compiles the kernel for a type of each kind of accumulator, without a warning, and holds what it uses of
// a GPU to testdata/kernels.txt.
func TestKernels(t *testing.T) { budget.Test(t, budgeted) }

func budgeted(arch string) []kernel.Spec {
	if arch != "sm_90a" { // the compiler treats types there as it does here
		return Kernels(arch, weft.BFloat16, moving)
	}
	return Kernels(arch, weft.BFloat16, weft.Float64, weft.Int32, weft.Int64, moving)
}

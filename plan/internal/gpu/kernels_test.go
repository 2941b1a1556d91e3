package gpu

import (
	"strconv"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
)

// TestKernels compiles the typical kernels without a warning, and holds what they use of a GPU to
// testdata/kernels.txt; with WEFT_TEST_ALL=1 those for a type of each kind of accumulator.
func TestKernels(t *testing.T) { budget.Sample(t, budgeted, typical) }

// typical is a kernel for bf16, or of plans that reduce nothing, within a host.
func typical(s kernel.Spec) bool {
	return budget.Defines(s, "WEFT_TYPE", strconv.Itoa(int(weft.BFloat16))) ||
		budget.Defines(s, "WEFT_TYPE", strconv.Itoa(int(moving))) && !strings.HasSuffix(s.Kernels[0], "<true,true>")
}

func budgeted(arch string) []kernel.Spec {
	if arch != "sm_90a" { // the compiler treats types there as it does here
		return Kernels(arch, weft.BFloat16, moving)
	}
	return Kernels(arch, weft.BFloat16, weft.Float64, weft.Int32, weft.Int64, moving)
}

package gpu

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
)

// kinds are types whose kernels differ: of two bytes with a wider accumulator, and of eight bytes, which takes most
// registers.
var kinds = []weft.DType{weft.BFloat16, weft.Float64}

// typical is a kernel that moves data, or reduces one of the kinds. The other types differ from these in
// what all reductions have, so one of the reductions is compiled for them.
func typical(s kernel.Spec) bool {
	if s.Defines["WEFT_TYPE"] == "" || strings.HasPrefix(s.Name, "two-shot all-reduce of") {
		return true
	}
	return slices.ContainsFunc(kinds, func(d weft.DType) bool { return s.Defines["WEFT_TYPE"] == strconv.Itoa(int(d)) })
}

// budgeted are the kernels of every encoding and type for four ranks. Of what reduces parts as they become
// ready there are the typical ones.
func budgeted(arch string) []kernel.Spec {
	return slices.DeleteFunc(Kernels(arch, 4), func(s kernel.Spec) bool {
		return strings.HasPrefix(s.Name, "reduce-scatter when ready") && !typical(s)
	})
}

// TestKernels compiles the typical kernels for four ranks, without a warning, and holds what they use of a
// GPU to testdata/kernels.txt; with WEFT_TEST_ALL=1 those of every type, for every architecture.
func TestKernels(t *testing.T) {
	budget.Sample(t, budgeted, typical)
}

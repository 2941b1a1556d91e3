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

// accumulators are one type for each kind of accumulator.
var accumulators = []weft.DType{weft.BFloat16, weft.Float32, weft.Float64, weft.Int32, weft.Int64, weft.Bool}

// typical is a kernel that moves data, or reduces a type whose kernels differ from the others: of two bytes with a
// wider accumulator, or of eight bytes, which takes most registers. Of a type for each other kind of accumulator one of
// the reductions is compiled.
func typical(s kernel.Spec) bool {
	return s.Defines["WEFT_TYPE"] == "" || of(s, weft.BFloat16, weft.Float64) ||
		strings.HasPrefix(s.Name, "two-shot all-reduce of") && of(s, accumulators...)
}

// of reports whether a kernel reduces one of types.
func of(s kernel.Spec, types ...weft.DType) bool {
	return slices.ContainsFunc(types, func(d weft.DType) bool { return s.Defines["WEFT_TYPE"] == strconv.Itoa(int(d)) })
}

// budgeted are the kernels of every encoding and type for four ranks, but of what reduces parts as they become ready
// one for each kind of accumulator.
func budgeted(arch string) []kernel.Spec {
	return slices.DeleteFunc(Kernels(arch, 4), func(s kernel.Spec) bool {
		return strings.HasPrefix(s.Name, "reduce-scatter when ready") && !of(s, accumulators...)
	})
}

// TestKernels compiles the typical kernels for four ranks, without a warning, and holds what they use of a
// GPU to testdata/kernels.txt; with WEFT_TEST_ALL=1 those of every type, for every architecture.
func TestKernels(t *testing.T) {
	budget.Sample(t, budgeted, typical)
}

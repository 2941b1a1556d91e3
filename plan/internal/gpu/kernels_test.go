package gpu

import (
	"testing"

	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
)

// TestKernels compiles the kernels of every type, without a warning, and holds what they use of a GPU to
// testdata/kernels.txt.
func TestKernels(t *testing.T) { budget.Test(t, kernels) }

func kernels(arch string) []kernel.Spec { return Kernels(arch) }

package proxy

import (
	"testing"

	"github.com/weftgo/weft/cuda/cudatest/budget"
)

// TestKernels compiles the kernel without a warning, and holds what it uses of a GPU to testdata/kernels.txt.
func TestKernels(t *testing.T) { budget.Test(t, Kernels) }

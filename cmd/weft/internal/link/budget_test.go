package link

import (
	"testing"

	"github.com/weftgo/weft/cuda/cudatest/budget"
)

// TestKernelsUse holds what every kernel uses to testdata/kernels.txt. After a change on purpose:
//
//	go test ./cmd/weft/internal/link -run TestKernelsUse -update
func TestKernelsUse(t *testing.T) { budget.Test(t, Kernels) }

package timing

import (
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
)

var update = flag.Bool("update", false, "rewrite testdata/kernels.txt, what kernels may use of a GPU")

// TestKernelsUse holds what every kernel uses to testdata/kernels.txt. After a change on purpose:
//
//	go test ./cmd/weft/internal/bench/timing -run TestKernelsUse -update
func TestKernelsUse(t *testing.T) {
	if _, err := os.Stat("budget_test.go"); err != nil {
		t.Skip("needs the source tree: kernels are compiled where they are written")
	}
	cache := budget.Cache(cudatest.NVRTC(t))
	var specs []kernel.Spec
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		specs = append(specs, Kernels(arch)...)
	}
	programs, err := budget.Compile(t.Context(), cache, specs)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	err = budget.Check("testdata/kernels.txt", programs, *update)
	if errors.Is(err, budget.ErrOtherCompiler) {
		t.Skipf("compiled; not held to the budget: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
}

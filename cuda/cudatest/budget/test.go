package budget

import (
	"context"
	"errors"
	"flag"
	"path/filepath"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

// Archs are the architectures that kernels are compiled for in tests: the oldest, the first with
// bulk copies and dependent launches, the newest.
var Archs = []string{"sm_80", "sm_90a", "sm_100a"}

var update = flag.Bool("update", false, "rewrite testdata/kernels.txt, what kernels may use of a GPU")

// Updating says whether the tests were started to rewrite the budget.
func Updating() bool { return *update }

// TB is a test.
type TB interface {
	cudatest.TB
	Context() context.Context
	Error(args ...any)
}

// Test compiles a package's kernels for all of [Archs] and holds them to its budget.
func Test(t TB, kernels func(arch string) []kernel.Spec) {
	t.Helper()
	NeedSource(t)
	cache := Cache(cudatest.NVRTC(t))
	var specs []kernel.Spec
	for _, arch := range Archs {
		specs = append(specs, kernels(arch)...)
	}
	programs, err := Compile(t.Context(), cache, specs)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	Hold(t, programs)
}

// NeedSource skips a test that runs elsewhere: kernels are compiled where they are written.
func NeedSource(t TB) {
	t.Helper()
	if files, err := filepath.Glob("*.go"); err != nil || len(files) == 0 {
		t.Skipf("needs the source tree: kernels are compiled where they are written")
	}
}

// Hold holds what a package's kernels use to its budget, or skips the test if that is of another
// compiler.
func Hold(t TB, programs []Program) {
	t.Helper()
	err := Check("testdata/kernels.txt", programs, *update)
	if errors.Is(err, ErrOtherCompiler) {
		t.Skipf("compiled; not held to the budget: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
}

package budget

import (
	"context"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

// Archs are the architectures that kernels are compiled for in tests: the oldest, the first with
// bulk copies and dependent launches, the newest.
var Archs = []string{"sm_80", held, "sm_100a"}

// held is the architecture whose kernels are always compiled.
const held = "sm_90a"

var update = flag.Bool("update", false, "rewrite testdata/kernels.txt, what kernels may use of a GPU")

// TB is a test.
type TB interface {
	cudatest.TB
	Context() context.Context
	Error(args ...any)
	Logf(format string, args ...any)
}

// Test compiles a package's kernels without a warning, and holds them to its budget: all for sm_90a, of the
// other architectures of [Archs] one program of each source. What was compiled is kept in the user's cache
// directory. With -update or WEFT_TEST_ALL=1 all are compiled for all architectures.
func Test(t TB, kernels func(arch string) []kernel.Spec) {
	t.Helper()
	Sample(t, kernels, func(kernel.Spec) bool { return true })
}

// Sample is Test, of those kernels for sm_90a that are typical, and of one program of each source.
func Sample(t TB, kernels func(arch string) []kernel.Spec, typical func(kernel.Spec) bool) {
	t.Helper()
	NeedSource(t)
	cache := Cache(cudatest.NVRTC(t))
	var specs, uncompiled []kernel.Spec
	for _, arch := range Archs {
		all := kernels(arch)
		if *update || os.Getenv("WEFT_TEST_ALL") == "1" {
			specs = append(specs, all...)
			continue
		}
		some := OneOfEach(all)
		for i, s := range all {
			if slices.Contains(some, i) || arch == held && typical(s) {
				specs = append(specs, s)
			} else {
				uncompiled = append(uncompiled, s)
			}
		}
	}
	programs, err := Compile(t.Context(), cache, specs)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Logf("%d programs compiled; %d more are by WEFT_TEST_ALL=1", len(specs), len(uncompiled))
	err = Check("testdata/kernels.txt", programs, uncompiled, *update)
	if errors.Is(err, ErrOtherCompiler) {
		t.Skipf("compiled; not held to the budget: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
}

// OneOfEach gives the places of a program of each source: the first for the oldest architecture, the last
// for others.
func OneOfEach(specs []kernel.Spec) []int {
	picked := map[string]int{}
	for i, s := range specs {
		if _, ok := picked[s.Source]; !ok || s.Arch != Archs[0] {
			picked[s.Source] = i
		}
	}
	return slices.Collect(maps.Values(picked))
}

// NeedSource skips a test that runs elsewhere: kernels are compiled where they are written.
func NeedSource(t TB) {
	t.Helper()
	if files, err := filepath.Glob("*.go"); err != nil || len(files) == 0 {
		t.Skipf("needs the source tree: kernels are compiled where they are written")
	}
}

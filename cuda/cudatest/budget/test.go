package budget

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

// Archs are the architectures that kernels are compiled for in tests: the oldest, the first with
// bulk copies and dependent launches, the newest.
var Archs = []string{oldest, usual, "sm_100a"}

// usual is the architecture that most kernels are compiled for.
const oldest, usual = "sm_80", "sm_90a"

var update = flag.Bool("update", false, "rewrite testdata/kernels.txt, what kernels may use of a GPU")

// TB is a test.
type TB interface {
	cudatest.TB
	Context() context.Context
	Error(args ...any)
	Logf(format string, args ...any)
}

// Test compiles a package's kernels without a warning, and holds them to its budget: for sm_90a [Pairs] of them, for
// sm_80 one program of each source, for sm_100a one of the longest source. What was compiled is kept in the user's
// cache directory. With -update or WEFT_TEST_ALL=1 all are compiled for all architectures.
func Test(t TB, kernels func(arch string) []kernel.Spec) {
	t.Helper()
	Sample(t, kernels, func(kernel.Spec) bool { return true })
}

// Sample is Test, whose kernels for sm_90a are pairs of those that are typical.
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
		var some []int
		switch arch {
		case usual:
			some = Pairs(all, typical)
		case oldest:
			some = OneOfEach(all)
		default:
			some = OneOfEach(all)
			some = []int{slices.MaxFunc(some, func(a, b int) int {
				return cmp.Or(len(all[a].Source)-len(all[b].Source), a-b)
			})}
		}
		for i, s := range all {
			if slices.Contains(some, i) {
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

// Pairs gives the places of a few of the typical programs. Wherever one of all these has two values of two defines, or
// of a define and its list of kernels, one of the few has them too.
func Pairs(specs []kernel.Spec, typical func(kernel.Spec) bool) (few []int) {
	has, left := map[int][]string{}, map[string]bool{} // by place, and all
	sources := map[string]int{}
	for i, s := range specs {
		if !typical(s) {
			continue
		}
		if _, ok := sources[s.Source]; !ok {
			sources[s.Source] = i
		}
		values := []string{strings.Join(s.Kernels, " ")}
		for _, name := range slices.Sorted(maps.Keys(defines(specs, s.Source))) {
			value, ok := s.Defines[name]
			values = append(values, fmt.Sprintf("%s %t %s", name, ok, value))
		}
		for k, value := range values {
			for _, other := range values[k:] {
				pair := fmt.Sprintf("%d\n%s\n%s", sources[s.Source], value, other)
				has[i], left[pair] = append(has[i], pair), true
			}
		}
	}
	for len(left) > 0 {
		best, most := 0, 0
		for _, i := range slices.Sorted(maps.Keys(has)) {
			n := 0
			for _, pair := range has[i] {
				if left[pair] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		for _, pair := range has[best] {
			delete(left, pair)
		}
		few = append(few, best)
	}
	slices.Sort(few)
	return few
}

// defines are the names of what programs of a source define.
func defines(specs []kernel.Spec, source string) map[string]bool {
	names := map[string]bool{}
	for _, s := range specs {
		if s.Source == source {
			for name := range s.Defines {
				names[name] = true
			}
		}
	}
	return names
}

// Defines reports whether a program defines a name as one of values. An empty one stands for no definition.
func Defines(s kernel.Spec, name string, values ...string) bool {
	return slices.Contains(values, s.Defines[name])
}

// OneOfEach gives the places of a program of each source: the first for the oldest architecture, the last
// for others.
func OneOfEach(specs []kernel.Spec) []int {
	picked := map[string]int{}
	for i, s := range specs {
		if _, ok := picked[s.Source]; !ok || s.Arch != oldest {
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

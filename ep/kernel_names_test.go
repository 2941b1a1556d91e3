package ep_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/ep"
)

// profilerColumns is how much of a kernel's name benchmarks let a profiler's table show.
const profilerColumns = 100

// TestKernelNames: benchmarks look for the words dispatch and combine in a profiler's table, and
// want exactly one row with each. So all kernels of a handle that dispatch have one name, in whole:
// with their parameters, and without a template's arguments, in which the forms of a kernel would
// differ. The same holds for combine, and no other kernel's name has either word. With WEFT_TEST_ALL=1
// handles have rows of each type, else of bf16, and some of the programs are compiled: kernels that have
// the same C++ name in others have the names of these.
func TestKernelNames(t *testing.T) {
	if _, err := os.Stat("kernel_names_test.go"); err != nil {
		t.Skip("needs the source tree: kernels are compiled where they are written")
	}
	specs := map[ep.Spec]int{}
	for s, ranks := range smallSpecs() {
		if emulate.Everything() || s.Payload == ep.Opaque || s.Payload == ep.BF16 || s.Quantize == weft.BFloat16 {
			specs[s] = ranks
		}
	}
	every := ep.Kernels("sm_90a")
	kernels := every
	if !emulate.Everything() {
		kernels = nil
		for _, i := range budget.Pairs(every, func(s kernel.Spec) bool {
			bf16 := strconv.Itoa(int(weft.BFloat16)) // the same as those that are held to their budget
			return budget.Defines(s, "WEFT_TYPE", "", "0", bf16) && budget.Defines(s, "WEFT_QUANTIZE", "", "0", bf16)
		}) {
			kernels = append(kernels, every[i])
		}
	}
	programs, err := budget.Compile(t.Context(), budget.Cache(cudatest.NVRTC(t)), kernels)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	shown := map[string][]string{} // by program, what a profiler shows
	all := map[string]bool{}
	byKernel, names := map[string]string{}, map[string][]string{} // those of others
	for _, p := range programs {
		for _, symbol := range p.Symbols {
			name, err := demangle(symbol)
			if err != nil || len(name) > profilerColumns {
				t.Errorf("%s: kernel %s, shown as %s: %v", p.Name, symbol, name, err)
			}
			shown[p.Name], all[name] = append(shown[p.Name], name), true
			kernel, _, _ := strings.Cut(name, "(")
			byKernel[kernel] = name
		}
	}
	for _, k := range every {
		for _, name := range k.Kernels {
			if _, compiled := shown[k.Name]; !compiled && byKernel[name] != "" {
				names[k.Name] = append(names[k.Name], byKernel[name])
			}
		}
	}
	maps.Copy(shown, names)
	for word, kernels := range map[string][]string{
		"dispatch": {"weft::direct::dispatch(", "weft::slots::dispatch("},
		"combine":  {"weft::direct::combine(", "weft::slots::combine("},
		"row_map":  {"weft::direct::row_map("},
	} {
		got := with(all, word)
		if !slices.EqualFunc(got, kernels, strings.HasPrefix) {
			t.Errorf("with %s in their names there are %q, want %q, each with one list of parameters", word, got, kernels)
		}
	}

	for s, ranks := range specs {
		of := map[string]bool{}
		for _, program := range ep.ProgramsOf(s, ranks) {
			for _, name := range shown[program] {
				of[name] = true
			}
		}
		dispatches := 1
		if s.Payload == ep.Opaque {
			dispatches = 0 // it gathers
		}
		if got := with(of, "dispatch"); len(got) != dispatches {
			t.Fatalf("a handle of %+v has the dispatches %q, want %d", s, got, dispatches)
		}
		if got := with(of, "combine"); len(got) != dispatches {
			t.Fatalf("a handle of %+v has the combines %q, want %d", s, got, dispatches)
		}
	}
}

// with are the names that have a word in them.
func with(names map[string]bool, word string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(names)),
		func(name string) bool { return !strings.Contains(name, word) })
}

// demangle is what a profiler shows of a symbol: a function in namespaces, in the first of which
// the types of its parameters are. Others are refused.
func demangle(symbol string) (string, error) {
	nested, mangled := strings.CutPrefix(symbol, "_ZN")
	names, rest := identifiers(nested)
	rest, ok := strings.CutPrefix(rest, "E")
	if !mangled || !ok || len(names) < 3 {
		return symbol, fmt.Errorf("%s is no function in two namespaces", symbol)
	}
	var types []string
	for rest != "" {
		if rest, ok = strings.CutPrefix(rest, "NS_"); !ok {
			return symbol, fmt.Errorf("%s has a parameter of another kind than a struct of %s", symbol, names[0])
		}
		var parts []string
		parts, rest = identifiers(rest)
		if rest, ok = strings.CutPrefix(rest, "E"); !ok {
			return symbol, fmt.Errorf("%s has a parameter that is a template", symbol)
		}
		types = append(types, strings.Join(append(names[:1:1], parts...), "::"))
	}
	return strings.Join(names, "::") + "(" + strings.Join(types, ", ") + ")", nil
}

// identifiers reads names that stand behind their lengths.
func identifiers(s string) (names []string, rest string) {
	for {
		digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil || len(digits)+n > len(s) {
			return names, s
		}
		names, s = append(names, s[len(digits):len(digits)+n]), s[len(digits)+n:]
	}
}

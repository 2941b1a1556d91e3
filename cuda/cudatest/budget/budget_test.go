package budget

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

const ptxasOutput = `ptxas info    : 20 bytes gmem, 40 bytes cmem[4]
ptxas info    : Compiling entry function 'flag' for 'sm_80'
ptxas info    : Function properties for flag
ptxas         .     80 bytes stack frame, 68 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 80 bytes cumulative stack size, 16388 bytes smem, ` +
	`1120 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 1876.995 ms
ptxas info    : Function properties for _ZN4weft4Wait4lookEjyy
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'small' for 'sm_80'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
`

func TestRead(t *testing.T) {
	got, err := read(ptxasOutput)
	want := map[string]Use{"flag": {Registers: 64, Stack: 88, Spilled: 100, Shared: 16388}, "small": {Registers: 8}}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v", cmp.Diff(want, got), err)
	}
	for _, log := range []string{
		ptxasOutput + "kernel.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n",
		"ptxas warning : Value of threads per SM is out of range\n" + ptxasOutput,
		"ptxas info    : Compiling entry function 'silent' for 'sm_80'\n",
		"ptxas info    : Used 8 registers\n",
	} {
		if got, err := read(log); err == nil {
			t.Errorf("%q is understood as %v", log, got)
		}
	}
}

func program(arch string, uses ...Use) Program {
	p := Program{Arch: arch, Name: "ep send, twice", Compiler: "NVRTC 13.0", Kernels: map[string]Use{}}
	for i, use := range uses {
		p.Kernels["k"+string(rune('0'+i))] = use
	}
	return p
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.txt")
	use := Use{Registers: 60, Stack: 16, Shared: 32}
	both := []Program{program("sm_80", use, Use{Registers: 9}), program("sm_90a", use)}
	if err := Check(path, both, nil, false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := Check(path, both, nil, true); err != nil {
		t.Fatal(err)
	}
	grown := func(f func(*Use)) []Program {
		more := use
		f(&more)
		return []Program{program("sm_90a", more)}
	}
	other := program("sm_90a", use)
	other.Compiler = "NVRTC 12.9"
	for name, tt := range map[string]struct {
		programs []Program
		want     string // in the error; none if empty
	}{
		"same":        {both, ""},
		"one":         {both[1:], ""},
		"less":        {grown(func(u *Use) { u.Registers, u.Stack, u.Shared = 20, 0, 0 }), ""},
		"slack":       {grown(func(u *Use) { u.Registers += slack }), ""},
		"registers":   {grown(func(u *Use) { u.Registers += slack + 1 }), "k0: 65 registers, 64 are allowed"},
		"stack":       {grown(func(u *Use) { u.Stack++ }), "17 bytes of stack, 16 are allowed"},
		"spills":      {grown(func(u *Use) { u.Spilled++ }), "1 bytes spilled, 0 are allowed"},
		"shared":      {grown(func(u *Use) { u.Shared++ }), "33 bytes of static shared memory, 32 are allowed"},
		"new kernel":  {[]Program{program("sm_90a", use, use)}, "kernel k1 has no budget"},
		"kernel gone": {[]Program{program("sm_80", use)}, "the budget has kernel k1, and it is gone"},
		"program gone": {
			[]Program{{Arch: "sm_90a", Name: "other", Compiler: "NVRTC 13.0"}},
			"the budget has sm_90a ep send, twice, and it is gone",
		},
		"another version": {[]Program{other}, "another compiler"},
		"none":            {nil, "no programs"},
	} {
		err := Check(path, tt.programs, nil, false)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if err := Check(path, []Program{other}, nil, false); !errors.Is(err, ErrOtherCompiler) {
		t.Errorf("another version: %v", err)
	}
	left := func(name string) []kernel.Spec { return []kernel.Spec{{Arch: "sm_90a", Name: name}} }
	if err := Check(path, both[:1], left(both[1].Name), false); err != nil {
		t.Errorf("a sample: %v", err)
	}
	err := Check(path, both, left("ep receive"), false)
	if err == nil || !strings.Contains(err.Error(), "sm_90a ep receive has no budget") {
		t.Errorf("what a sample leaves out, and the budget lacks: %v", err)
	}
	err = Check(path, both[:1], left("ep receive"), false)
	if err == nil || !strings.Contains(err.Error(), "the budget has sm_90a ep send, twice, and it is gone") {
		t.Errorf("gone beside what a sample leaves out: %v", err)
	}
}

// TestRewrite: reasons and slack survive, other architectures too, and what is gone goes.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.txt")
	spilling := program("sm_80", Use{Registers: 64, Stack: 8, Spilled: 16})
	err := Check(path, []Program{spilling, program("sm_90a", Use{Registers: 10})}, nil, true)
	if err == nil || !strings.Contains(err.Error(), "for no reason") {
		t.Errorf("spills without a reason: %v", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reasoned := strings.Replace(string(text), "slack 4\n", "slack 2\nspills ep send, twice k: it is rare\n", 1)
	if reasoned == string(text) {
		t.Fatalf("the file is\n%s", text)
	}
	if err := os.WriteFile(path, []byte(reasoned), 0o644); err != nil {
		t.Fatal(err)
	}
	spilling.Kernels["k0"] = Use{Registers: 62, Stack: 4, Spilled: 8}
	if err := Check(path, []Program{spilling}, nil, true); err != nil {
		t.Error(err)
	}
	if text, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	want := `compiler NVRTC 13.0
slack 2
spills ep send, twice k: it is rare
  kernel                   registers stack spilled shared
sm_80 ep send, twice
  k0                              62     4       8      0
sm_90a ep send, twice
  k0                              10     0       0      0
`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
	if err := Check(path, []Program{{Arch: "sm_80", Name: "new", Compiler: "NVRTC 13.0"}}, nil, true); err != nil {
		t.Error(err)
	}
	if text, err = os.ReadFile(path); err != nil || strings.Contains(string(text), "sm_80 ep") ||
		!strings.Contains(string(text), "sm_90a ep") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestParseRefuses(t *testing.T) {
	const head = "compiler a\nslack 1\n"
	for text, want := range map[string]string{
		"":                         "0: ",
		"slack 1\n":                "1: want a line as: compiler",
		"compiler a\n":             "1: ",
		"compiler a\nslack x\n":    "2: ",
		head + "  k 1 2 3 4\n":     "3: a kernel of no program",
		head + "spills k rare\n":   "3: want a line as: spills",
		head + "p\n  k 1 2 3\n":    "4: 4 columns",
		head + "p\n  k 1 2 3 x\n":  `4: "x"`,
		head + "p\n  k 1 2 3 -4\n": `4: "-4"`,
		head + "p\np\n":            "4: p is there twice",
		head + "p\n  k 1 2 3 4\n" + "  k 1 2 3 4\n": "5: kernel k is there twice",
	} {
		if _, err := parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestCompile: the figures of a kernel that spills, and of one with shared memory.
func TestCompile(t *testing.T) {
	cudatest.NVRTC(t)
	cache := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}})
	s := kernel.Spec{Name: "two", Arch: "sm_90a", Source: `
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float *x) {
	float v[64];
#pragma unroll
	for (int i = 0; i < 64; i++) v[i] = x[i * 1024 + threadIdx.x];
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 64; i++) x[threadIdx.x * 64 + i] = v[63 - i] * v[i];
}
namespace layer {
__global__ void shares(int *x) {
	__shared__ int all[256];
	all[threadIdx.x] = x[threadIdx.x];
	__syncthreads();
	x[threadIdx.x] = all[255 - threadIdx.x];
}
}`, Kernels: []string{"layer::shares"}}
	programs, err := Compile(t.Context(), cache, []kernel.Spec{s})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	p := programs[0]
	if u := p.Kernels["spills"]; u.Registers > 32 || u.Spilled == 0 || u.Stack == 0 || u.Shared != 0 {
		t.Errorf("the kernel that spills: %+v", u)
	}
	if u := p.Kernels["layer::shares"]; u.Registers == 0 || u.Spilled != 0 || u.Shared < 1024 {
		t.Errorf("the kernel with shared memory: %+v", u)
	}
	if p.Arch != "sm_90a" || p.Name != "two" || !strings.HasPrefix(p.Compiler, "NVRTC ") ||
		len(p.Kernels) != 2 || !slices.Equal(p.Symbols, []string{"_ZN5layer6sharesEPi", "spills"}) ||
		len(s.Options) != 0 {
		t.Errorf("%+v", p)
	}
	s.Source = strings.Replace(s.Source, "__syncthreads();", "int unused; __syncthreads();", 1)
	if _, err := Compile(t.Context(), cache, []kernel.Spec{s}); err == nil || !strings.Contains(err.Error(), "unused") {
		t.Errorf("with a warning: %v", err)
	}
}

// TestPairs: a few programs have all pairs of values that all have.
func TestPairs(t *testing.T) {
	var specs []kernel.Spec
	for _, source := range []string{"one", "two"} {
		for i := range 27 {
			s := kernel.Spec{Name: fmt.Sprint(i), Source: source, Defines: map[string]string{"A": fmt.Sprint(i % 3)}}
			if i/3%3 > 0 { // or it has none
				s.Defines["B"] = fmt.Sprint(i / 3 % 3)
			}
			s.Kernels = []string{fmt.Sprint(i / 9)}
			specs = append(specs, s)
		}
	}
	pairs := func(places []int) map[string]bool {
		of := map[string]bool{}
		for _, i := range places {
			s := specs[i]
			b, ok := s.Defines["B"]
			of[fmt.Sprintf("%s A %s B %t %s", s.Source, s.Defines["A"], ok, b)] = true
			of[fmt.Sprintf("%s A %s kernels %s", s.Source, s.Defines["A"], s.Kernels)] = true
			of[fmt.Sprintf("%s B %t %s kernels %s", s.Source, ok, b, s.Kernels)] = true
		}
		return of
	}
	typical := func(s kernel.Spec) bool { return s.Source == "one" || s.Defines["A"] == "2" }
	var all []int
	for i, s := range specs {
		if typical(s) {
			all = append(all, i)
		}
	}
	few := Pairs(specs, typical)
	if got, want := pairs(few), pairs(all); !maps.Equal(got, want) {
		t.Errorf("%d of %d pairs", len(got), len(want))
	}
	if len(few) > 2*(9+3) { // of each source there are 9 pairs at least
		t.Errorf("%d programs", len(few))
	}
	for _, i := range few {
		if !typical(specs[i]) {
			t.Errorf("%+v is not typical", specs[i])
		}
	}
}

package nvrtc_test

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/nvrtc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scale is a real kernel: it includes a header, is specialised by a macro, and has inline PTX.
var scale = nvrtc.Program{
	Name: "scale.cu",
	Source: `#include "load.h"
extern "C" __global__ void scale(float *x, const float *by, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	for (int k = 0; k < UNROLL; k++, i += blockDim.x * gridDim.x)
		if (i < n) x[i] *= load(by + i);
}`,
	Headers: map[string]string{"load.h": `
__device__ __forceinline__ float load(const float *p) {
	float v;
	asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
	return v;
}`},
	Options: []string{"--std=c++17", "-DUNROLL=4"},
}

func forArchitecture(p nvrtc.Program, a string) nvrtc.Program {
	p.Architecture = a
	return p
}

func TestCompile(t *testing.T) {
	c := cudatest.NVRTC(t)
	const cuda = 190 // ELF's number for the machine
	var images [][]byte
	for _, a := range []string{"sm_80", "sm_90a", "sm_100a"} {
		b, err := c.Compile(t.Context(), forArchitecture(scale, a))
		if err != nil {
			t.Errorf("%s: %+v", a, err)
			continue
		}
		f, err := elf.NewFile(bytes.NewReader(b.Image))
		if err != nil {
			t.Errorf("%s: the image is no ELF file: %v", a, err)
			continue
		}
		if f.Machine != cuda || f.Section(".text.scale") == nil || b.PTX {
			t.Errorf("%s: machine %v without a kernel, PTX %v", a, f.Machine, b.PTX)
		}
		for _, other := range images {
			if bytes.Equal(other, b.Image) {
				t.Errorf("%s: the same image as another architecture's", a)
			}
		}
		images = append(images, b.Image)
	}
	b, err := c.Compile(t.Context(), forArchitecture(scale, "compute_90"))
	if err != nil {
		t.Fatal(err)
	}
	if !b.PTX || !bytes.Contains(b.Image, []byte(".target sm_90")) || !bytes.Contains(b.Image, []byte(".entry scale")) {
		t.Errorf("PTX %v:\n%s", b.PTX, b.Image)
	}
}

// TestSymbols: kernels in namespaces and of templates are told by what a driver finds them by;
func TestSymbols(t *testing.T) {
	c := cudatest.NVRTC(t)
	p := nvrtc.Program{
		Name: "layer.cu", Architecture: "sm_90a", Kernels: []string{"layer::scale", "layer::fill<unsigned int>"},
		Source: `namespace layer {
__global__ void scale(float *x, float by) { x[threadIdx.x] *= by; }
template <typename T> __global__ void fill(T *x) { x[threadIdx.x] = T(1); }
}`,
	}
	b, err := c.Compile(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"_ZN5layer5scaleEPff", "_ZN5layer4fillIjEEvPT_"}; !slices.Equal(b.Symbols, want) {
		t.Errorf("symbols %q, want %q", b.Symbols, want)
	}
	f, err := elf.NewFile(bytes.NewReader(b.Image))
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range b.Symbols {
		if f.Section(".text."+symbol) == nil {
			t.Errorf("no kernel %s", symbol)
		}
	}
}

// TestDeterministic: the same program makes the same bytes, or a cache of them would be of no use.
func TestDeterministic(t *testing.T) {
	c := cudatest.NVRTC(t)
	var first []byte
	for range 3 {
		b, err := c.Compile(t.Context(), forArchitecture(scale, "sm_90a"))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b.Image
		} else if !bytes.Equal(first, b.Image) {
			t.Error("the image differs")
		}
	}
}

func TestCompileErrors(t *testing.T) {
	c := cudatest.NVRTC(t)
	for name, tt := range map[string]struct {
		change     func(*nvrtc.Program)
		first, log string
	}{
		"type error": {func(p *nvrtc.Program) {
			p.Source = "\n__global__ void k(int *p) {\n\t*p = undeclared;\n}"
		}, "scale.cu(3): error", "undeclared"},
		"error after a warning": {func(p *nvrtc.Program) {
			p.Source = "__global__ void k(int *p) {\n\tint unused;\n\t*p = undeclared;\n}"
		}, "scale.cu(3): error", "unused"},
		"missing header": {func(p *nvrtc.Program) { p.Headers = nil }, `"load.h"`, "error"},
		"bad PTX mnemonic": {func(p *nvrtc.Program) {
			p.Headers = map[string]string{"load.h": strings.ReplaceAll(scale.Headers["load.h"], "ld.global.nc", "ld.golbal.nc")}
		}, "golbal", "ptx"},
		"no such kernel": {func(p *nvrtc.Program) { p.Kernels = []string{"missing"} }, `"missing"`, "missing"},
		"bad option": {
			func(p *nvrtc.Program) { p.Options = append(p.Options, "--no-such-option") },
			"no-such-option", "no-such-option",
		},
	} {
		p := forArchitecture(scale, "sm_90a")
		tt.change(&p)
		_, err := c.Compile(t.Context(), p)
		failed := new(nvrtc.CompileError)
		if !errors.As(err, &failed) {
			t.Errorf("%s: error %v, want a CompileError", name, err)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, tt.first) || !strings.HasPrefix(text, "compile scale.cu for sm_90a: ") ||
			strings.Contains(text, "\n") {
			t.Errorf("%s: %q, want one line with %q", name, text, tt.first)
		}
		if full := fmt.Sprintf("%+v", err); !strings.Contains(full, failed.Log) || !strings.Contains(full, tt.log) {
			t.Errorf("%s: the whole is %q, want the log with %q", name, full, tt.log)
		}
	}
	for name, change := range map[string]func(*nvrtc.Program){
		"architecture": func(p *nvrtc.Program) { p.Architecture = "hopper" },
		"kernels":      func(p *nvrtc.Program) { p.Kernels = []string{"scale\x00"} },
		"NUL":          func(p *nvrtc.Program) { p.Source += "\x00" },
	} {
		p := forArchitecture(scale, "sm_90a")
		change(&p)
		if _, err := c.Compile(t.Context(), p); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestWarnings come with the binary.
func TestWarnings(t *testing.T) {
	c := cudatest.NVRTC(t)
	b, err := c.Compile(t.Context(), nvrtc.Program{
		Name: "warn.cu", Architecture: "sm_80", Source: "__global__ void k(int *p) { int unused; *p = 1; }",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.Log, "unused") {
		t.Errorf("log %q", b.Log)
	}
}

// TestParallel compiles many programs at once, good and bad, and gets each its own answer.
func TestParallel(t *testing.T) {
	c := cudatest.NVRTC(t)
	n := 4 * runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			name := fmt.Sprintf("kernel_%d", i)
			p := nvrtc.Program{
				Name: name, Architecture: "sm_90a",
				Source: fmt.Sprintf("extern \"C\" __global__ void %s(int *p) { *p = %d; }", name, i),
			}
			if i%3 == 0 {
				p.Source += name + "_is_no_type x;"
			}
			b, err := c.Compile(t.Context(), p)
			if i%3 == 0 {
				if err == nil || !strings.Contains(err.Error(), name+"_is_no_type") {
					t.Errorf("%s: error %v, want its own", name, err)
				}
				return
			}
			if err != nil || !bytes.Contains(b.Image, []byte(".text."+name)) {
				t.Errorf("%s: %v, or another's image", name, err)
			}
		})
	}
	wg.Wait()
}

func TestContext(t *testing.T) {
	c := cudatest.NVRTC(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no time")
	cancel(cause)
	for range 20 { // also with a turn free
		if _, err := c.Compile(ctx, forArchitecture(scale, "sm_90a")); !errors.Is(err, cause) {
			t.Fatalf("error %v, want the context's cause", err)
		}
	}
}

func TestVersion(t *testing.T) {
	c := cudatest.NVRTC(t)
	if v := c.Version(); v.Major() < 11 || v.Major() > 99 {
		t.Errorf("version %v", v)
	}
	a := c.Architectures()
	if !slices.Contains(a, 80) || !slices.Contains(a, 90) || !slices.IsSorted(a) {
		t.Errorf("architectures %v", a)
	}
	if c.Path() == "" {
		t.Error("no path")
	}
}

func BenchmarkCompile(b *testing.B) {
	c := cudatest.NVRTC(b)
	for _, a := range []string{"sm_80", "sm_90a", "sm_100a"} {
		b.Run(a, func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Compile(b.Context(), forArchitecture(scale, a)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

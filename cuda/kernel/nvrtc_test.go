package kernel_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/cuda/nvrtc"
)

// scale needs its header, its macro and its option to compile.
var scale = kernel.Spec{
	Name: "scale",
	Source: `#include "scale.h"
extern "C" __global__ void scale(float *x) { if constexpr (OPTION) x[threadIdx.x] *= FACTOR * one(); }
namespace layer {
__global__ void scale(float *x, float by) { x[threadIdx.x] *= by; }
template <typename T> __global__ void fill(T *x) { x[threadIdx.x] = T(1); }
}`,
	Headers: map[string]string{"scale.h": "template <typename T = float> __device__ constexpr T one() { return T(1); }"},
	Defines: map[string]string{"FACTOR": "(2 + 1)"},
	Options: []string{"-DOPTION=1"},
	Kernels: []string{"layer::scale", "layer::fill<unsigned int>"},
	Arch:    "sm_90a",
}

// TestNVRTC compiles with the real compiler, and then does without.
func TestNVRTC(t *testing.T) {
	compiler := cudatest.NVRTC(t)
	dir := filepath.Join(t.TempDir(), "kernels")
	var specs []kernel.Spec
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		s := scale
		s.Arch = arch
		specs = append(specs, s)
	}
	ctx := t.Context()
	cubins, err := kernel.New(kernel.Options{Dir: dir, ReadOnly: []string{}}).LoadAll(ctx, specs)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cubins {
		if !bytes.HasPrefix(c.Image(), []byte("\x7fELF")) || c.Arch != specs[i].Arch ||
			c.Compiler != "NVRTC "+compiler.Version().String() {
			t.Errorf("%s: %d bytes that begin with %.4q, by %s", c.Arch, c.Size(), c.Image(), c.Compiler)
		}
	}
	none := func() (kernel.Compiler, error) { return nil, errors.New("none") }
	again, err := kernel.New(kernel.Options{Compiler: none, Dir: dir, ReadOnly: []string{}}).LoadAll(ctx, specs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range again {
		if again[i] != cubins[i] {
			t.Errorf("%s: what is read is not what was compiled", specs[i].Arch)
		}
		for name, want := range map[string]string{
			"scale": "scale", "layer::scale": "_ZN5layer5scaleEPff",
			"layer::fill<unsigned int>": "_ZN5layer4fillIjEEvPT_",
		} {
			if symbol := again[i].Symbol(name); symbol != want || !bytes.Contains(again[i].Image(), []byte(".text."+want)) {
				t.Errorf("%s: %s has the symbol %q, want %q, and a kernel of that name", specs[i].Arch, name, symbol, want)
			}
		}
	}
}

// TestNVRTCRefuses: the error names the kernel in short, and has the whole log in full.
func TestNVRTCRefuses(t *testing.T) {
	cudatest.NVRTC(t)
	s := scale
	s.Defines = nil
	s.Source += "\nint second = unknown;"
	_, err := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}}).Load(t.Context(), s)
	var named *kernel.Error
	var refused *nvrtc.CompileError
	if !errors.As(err, &named) || named.Name != "scale" || !errors.As(err, &refused) {
		t.Fatalf("have %v", err)
	}
	if short, full := err.Error(), fmt.Sprintf("%+v", err); !strings.Contains(short, `"FACTOR" is undefined`) ||
		strings.Contains(short, "unknown") ||
		!strings.Contains(full, `"unknown" is undefined`) || !strings.HasPrefix(full, "kernel scale for sm_90a: ") {
		t.Errorf("in short: %s\nin full: %s", short, full)
	}
}

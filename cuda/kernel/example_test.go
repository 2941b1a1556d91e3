package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/weftgo/weft/cuda/kernel"
)

// upper stands in for NVRTC.
type upper struct{}

func (upper) Version() string { return "upper 1" }

func (upper) Compile(_ context.Context, s kernel.Spec) (kernel.Code, error) {
	fmt.Println("compiling", s.Name)
	return kernel.Code{Image: []byte("code of " + s.Name)}, nil
}

// A kernel is compiled by the first who needs it; a later cache over the same directory, in this
// process or another, reads it.
func Example() {
	dir, err := os.MkdirTemp("", "kernels")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	scale := kernel.Spec{
		Name:    "scale",
		Source:  `extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= FACTOR; }`,
		Defines: map[string]string{"FACTOR": "2"},
		Arch:    "sm_90a",
	}
	for range 2 {
		// the zero Options compile with NVRTC, and keep cubins in the user's cache directory
		cache := kernel.New(kernel.Options{
			Compiler: func() (kernel.Compiler, error) { return upper{}, nil },
			Dir:      dir,
			ReadOnly: []string{},
		})
		cubin, err := cache.Load(context.Background(), scale)
		if err != nil {
			fmt.Printf("%+v\n", err) // with all of the compiler's log
			return
		}
		fmt.Printf("%s for %s by %s: %s\n", cubin.Name, cubin.Arch, cubin.Compiler, cubin.Image())
	}
	// Output:
	// compiling scale
	// scale for sm_90a by upper 1: code of scale
	// scale for sm_90a by upper 1: code of scale
}

// Kernels for a server without a compiler are compiled where there is one, and carried there.
func ExampleCache_Fill() {
	cache := kernel.New(kernel.Options{})
	var specs []kernel.Spec
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		specs = append(specs, kernel.Spec{Name: "nothing", Source: `extern "C" __global__ void nothing() {}`, Arch: arch})
	}
	err := cache.Fill(context.Background(), "weft-kernels", specs) // to be named in WEFT_CACHE
	if errors.Is(err, kernel.ErrNoCompiler) {
		fmt.Println(err) // says what to install
		return
	}
	fmt.Println(kernel.Verify("weft-kernels"))
}

package nvrtc_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/cuda/nvrtc"
)

func Example() {
	compiler, err := nvrtc.Open()
	if err != nil {
		fmt.Println(err) // says what to install
		return
	}
	binary, err := compiler.Compile(context.Background(), nvrtc.Program{
		Name:         "add.cu",
		Source:       `extern "C" __global__ void add(float *x, const float *y) { x[threadIdx.x] += y[threadIdx.x]; }`,
		Architecture: "sm_90a",
		Options:      []string{"--std=c++17"},
	})
	if failed := new(nvrtc.CompileError); errors.As(err, &failed) {
		fmt.Printf("%+v\n", failed) // the whole log
		return
	}
	fmt.Println(len(binary.Image), "bytes to load")
}

package kernel

import (
	"context"
	"maps"
	"slices"

	"github.com/weftgo/weft/cuda/nvrtc"
)

// NVRTC opens NVIDIA's run-time compiler, which package nvrtc finds.
func NVRTC() (Compiler, error) {
	c, err := nvrtc.Open()
	if err != nil {
		return nil, err
	}
	return nvrtcCompiler{c}, nil
}

type nvrtcCompiler struct{ *nvrtc.Compiler }

func (c nvrtcCompiler) Version() string { return "NVRTC " + c.Compiler.Version().String() }

func (c nvrtcCompiler) Compile(ctx context.Context, s Spec) (Code, error) {
	options := []string{"--std=c++17"}
	for _, name := range slices.Sorted(maps.Keys(s.Defines)) {
		options = append(options, "-D"+name+"="+s.Defines[name])
	}
	b, err := c.Compiler.Compile(ctx, nvrtc.Program{
		Name:         s.Name,
		Source:       s.Source,
		Headers:      s.Headers,
		Architecture: s.Arch,
		Options:      append(options, s.Options...),
		Kernels:      s.Kernels,
	})
	if err != nil {
		return Code{}, err
	}
	return Code{Image: b.Image, Symbols: b.Symbols, Log: b.Log}, nil
}

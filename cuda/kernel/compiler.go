package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Compiler compiles specs. It is safe for concurrent use.
type Compiler interface {
	Compile(ctx context.Context, s Spec) (Code, error)
	// Version identifies the compiler and its version. Entries record it.
	Version() string
}

// Code is the output of a compiler for a spec.
type Code struct {
	// Image is the code that a driver loads.
	Image []byte
	// Symbols are the driver's names of the spec's Kernels, in their order.
	Symbols []string
	// Log has the compiler's remarks on a program that it accepted.
	Log string
}

// compile compiles a spec in this process, whether or not others do.
func (c *Cache) compile(ctx context.Context, key Key, s Spec) (Cubin, error) {
	compiler, err := c.compiler()
	if err != nil {
		return Cubin{}, err
	}
	start := time.Now()
	code, err := compiler.Compile(ctx, s)
	if err != nil {
		return Cubin{}, err
	}
	if len(code.Image) == 0 {
		return Cubin{}, errors.New("the compiler gave neither code nor an error")
	}
	if len(code.Symbols) != len(s.Kernels) {
		return Cubin{}, fmt.Errorf("the compiler gave %d symbols of %d kernels", len(code.Symbols), len(s.Kernels))
	}
	c.logger.Debug("kernel compiled", "kernel", s.Name, "arch", s.Arch, "compiler", compiler.Version(),
		"bytes", len(code.Image), "took", time.Since(start), "log", code.Log)
	return Cubin{
		Key: key, Name: s.Name, Arch: s.Arch, Library: LibraryVersion, Compiler: compiler.Version(), Log: code.Log,
		symbols: symbolTable(s.Kernels, code.Symbols), image: string(code.Image),
	}, nil
}

package kernel

import (
	"context"
	"errors"
	"time"
)

// Compiler compiles specs. It is safe for concurrent use.
type Compiler interface {
	// Compile gives the code, and what the compiler remarked on a program that it accepted.
	Compile(ctx context.Context, s Spec) (cubin []byte, log string, err error)
	// Version tells the compiler and its version. It is recorded with what was compiled.
	Version() string
}

// compile compiles a spec in this process, whatever others do.
func (c *Cache) compile(ctx context.Context, key Key, s Spec) (Cubin, error) {
	compiler, err := c.compiler()
	if err != nil {
		return Cubin{}, err
	}
	start := time.Now()
	image, log, err := compiler.Compile(ctx, s)
	if err != nil {
		return Cubin{}, err
	}
	if len(image) == 0 {
		return Cubin{}, errors.New("the compiler gave neither code nor an error")
	}
	c.logger.Debug("kernel compiled", "kernel", s.Name, "arch", s.Arch, "compiler", compiler.Version(),
		"bytes", len(image), "took", time.Since(start), "log", log)
	return Cubin{Key: key, Name: s.Name, Arch: s.Arch, Library: LibraryVersion, Compiler: compiler.Version(), Log: log, image: string(image)}, nil
}

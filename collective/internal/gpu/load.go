package gpu

import (
	"context"
	"errors"

	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// loading is a kernel to load, and what is done with it then.
type loading struct {
	source enginegpu.Source
	loaded func(f *cuda.Function) error
}

// into loads a kernel for a launch of a shape, with the argument as it is to begin with.
func into[A any](l *enginegpu.Launch[A], s enginegpu.Source, shape cuda.LaunchConfig, args A) loading {
	return loading{s, func(f *cuda.Function) (err error) {
		if shape.Shared > 0 {
			if err := f.SetMaxDynamicShared(shape.Shared); err != nil {
				return err
			}
		}
		*l, err = enginegpu.NewLaunch(f, shape, args)
		return err
	}}
}

// load loads kernels on all ranks or on none.
func (e *Engine) load(ctx context.Context, kernels ...loading) error {
	sources := make([]enginegpu.Source, len(kernels))
	for i, k := range kernels {
		sources[i] = k.source
	}
	p, err := enginegpu.Load(ctx, e.comm, opNew, sources...)
	if err != nil {
		return err
	}
	e.programs = append(e.programs, p)
	for i, k := range kernels {
		err = errors.Join(err, k.loaded(p.Functions(i)[0]))
	}
	return e.comm.Operations().VerifySame(ctx, opNew, "", err)
}

// config is the shape of most launches.
func (e *Engine) config() cuda.LaunchConfig { return e.shape(e.threads(), 0) }

// shape is that of launches whose blocks have so many threads and bytes of dynamic shared memory.
func (e *Engine) shape(threads, shared int) cuda.LaunchConfig {
	return cuda.LaunchConfig{Block: cuda.Dim{X: uint32(threads)}, Shared: shared, Dependent: e.dependent}
}

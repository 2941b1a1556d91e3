package gpu

import (
	"context"
	"errors"

	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// loading is a kernel to load, and what prepares it then. Only where all ranks have prepared all kernels are they put
// in their places, so a place that is filled says the same on every rank.
type loading struct {
	source  enginegpu.Source
	prepare func(f *cuda.Function) (place func(), err error)
}

// into loads a kernel for a launch of a shape, with the argument as it is to begin with.
func into[A any](l *enginegpu.Launch[A], s enginegpu.Source, shape cuda.LaunchConfig, args A) loading {
	return loading{s, func(f *cuda.Function) (place func(), err error) {
		if shape.Shared > 0 {
			if err := f.SetMaxDynamicShared(shape.Shared); err != nil {
				return nil, err
			}
		}
		made, err := enginegpu.NewLaunch(f, shape, args)
		return func() { *l = made }, err
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
	places := make([]func(), len(kernels))
	for i, k := range kernels {
		place, failed := k.prepare(p.Functions(i)[0])
		places[i], err = place, errors.Join(err, failed)
	}
	if err := e.comm.Operations().VerifySame(ctx, opNew, "", err); err != nil {
		return err
	}
	for _, place := range places {
		place()
	}
	return nil
}

// config is the shape of most launches.
func (e *Engine) config() cuda.LaunchConfig { return e.shape(e.threads(), 0) }

// shape is that of launches whose blocks have so many threads and bytes of dynamic shared memory.
func (e *Engine) shape(threads, shared int) cuda.LaunchConfig {
	return cuda.LaunchConfig{Block: cuda.Dim{X: uint32(threads)}, Shared: shared, Dependent: e.dependent}
}

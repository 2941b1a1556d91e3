package gpu

import (
	"context"
	"errors"

	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// loading is a kernel to load, and what is done with it then. It gives what a block of it costs: [enginegpu.Cost].
type loading struct {
	source enginegpu.Source
	loaded func(f *cuda.Function) (cost int, err error)
}

// into loads a kernel for a launch of a shape, with the argument as it is to begin with.
func into[A any](l *enginegpu.Launch[A], s enginegpu.Source, shape cuda.LaunchConfig, args A) loading {
	return loading{s, func(f *cuda.Function) (int, error) {
		if shape.Shared > 0 {
			if err := f.SetMaxDynamicShared(shape.Shared); err != nil {
				return 0, err
			}
		}
		made, err := enginegpu.NewLaunch(f, shape, args)
		if err != nil {
			return 0, err
		}
		*l = made
		return enginegpu.Cost(int(shape.Block.X), shape.Shared, f)
	}}
}

// load loads kernels on all ranks or on none, and gives what a block of the heaviest costs.
func (e *Engine) load(ctx context.Context, kernels ...loading) (cost int, err error) {
	sources := make([]enginegpu.Source, len(kernels))
	for i, k := range kernels {
		sources[i] = k.source
	}
	p, err := enginegpu.Load(ctx, e.comm, opNew, sources...)
	if err != nil {
		return 0, err
	}
	e.programs = append(e.programs, p)
	for i, k := range kernels {
		n, failed := k.loaded(p.Functions(i)[0])
		cost, err = max(cost, n), errors.Join(err, failed)
	}
	if err := e.comm.Operations().VerifySame(ctx, opNew, "", err); err != nil {
		return 0, err
	}
	return cost, nil
}

// config is the shape of most launches.
func (e *Engine) config() cuda.LaunchConfig { return e.shape(threads, 0) }

// shape is that of launches whose blocks have so many threads and bytes of dynamic shared memory.
func (e *Engine) shape(threads, shared int) cuda.LaunchConfig {
	return cuda.LaunchConfig{Block: cuda.Dim{X: uint32(threads)}, Shared: shared, Dependent: e.dependent}
}

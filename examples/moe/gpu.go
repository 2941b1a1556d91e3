package main

import (
	"context"
	_ "embed"
	"errors"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep"
)

// experts.cu has the experts' products, the only kernels of this program's own. The rank compiles
// them for its GPU when it starts, or finds them where it has put them before: see package kernel.
//
//go:embed experts.cu
var kernelSource string

// productArgs and gradientArgs are the arguments of the kernels: Product and Gradient of
// experts.cu, field by field.
type productArgs struct {
	x, w, y, mask       cuda.Pointer
	offsets, counts     cuda.Pointer
	in, out             uint32
	down, right, expert uint32
	relu                uint32
}

type gradientArgs struct {
	x, g, w         cuda.Pointer
	offsets, ranges cuda.Pointer
	in, out         uint32
	expert, ranks   uint32
}

const (
	tile      = 16 // of experts.cu
	rowBlocks = 8  // that share the rows of an expert
)

// gpu is the state on its GPU that the layers of a rank share. Only the experts work there: rows,
// selections and weights, the experts' parameters and all gradients cross between host and GPU with
// each pass. All of it, copies, exchanges and products, is in one stream, and the host waits at the
// end of a pass. A fast model would keep more on the GPU.
type gpu struct {
	comm   *weft.Comm
	handle *ep.Handle
	stream *cuda.Stream
	made   []func() error // what closes what was made

	product  enginegpu.Launch[productArgs]
	gradient enginegpu.Launch[gradientArgs]

	// The buffers that a pass of any layer uses.
	x, g                buffer // a row for each token: x, or its gradient; the output, or its gradient
	selected, weights   buffer // of the tokens; weights, or their gradients
	values, grads       buffer // of the experts' parameters
	gradHidden, gradOut *cuda.Memory
	y, hidden           []*cuda.Memory // of each layer, for its backward pass
}

// buffer is memory of the GPU with as much pinned memory of the host, through which copies in a
// stream go.
type buffer struct {
	device *cuda.Memory
	host   *cuda.HostMemory
}

// newGPU makes the state of the layers, on all ranks. The caller closes it, also if there is an
// error.
func newGPU(ctx context.Context, comm *weft.Comm, handle *ep.Handle, cfg Config) (*gpu, error) {
	g := &gpu{comm: comm, handle: handle}
	err := g.load(ctx)
	if err == nil {
		err = g.allocate(cfg)
	}
	// Drivers may stop a GPU to allocate or to load: no rank begins an exchange, which waits for
	// others, before all are done with that.
	return g, comm.Operations().VerifySame(ctx, "new model", "ready", err)
}

// close gives back what was made, the last first.
func (g *gpu) close() error {
	var errs []error
	for _, f := range slices.Backward(g.made) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// allocate makes the buffers, and the layers' memory.
func (g *gpu) allocate(cfg Config) (err error) {
	params := cfg.Experts / g.comm.Size() * cfg.expertSize()
	for _, b := range []struct {
		to      *buffer
		numbers int
	}{
		{&g.x, cfg.Tokens * cfg.Hidden},
		{&g.g, cfg.Tokens * cfg.Hidden},
		{&g.selected, cfg.Tokens * cfg.TopK},
		{&g.weights, cfg.Tokens * cfg.TopK},
		{&g.values, params},
		{&g.grads, params},
	} {
		if b.to.device, err = g.alloc(b.numbers); err != nil {
			return err
		}
		if b.to.host, err = g.comm.Device().Context().AllocHost(4*b.numbers, cuda.HostOptions{}); err != nil {
			return err
		}
		g.made = append(g.made, b.to.host.Close)
	}
	rows := g.handle.Capacity()
	if g.gradHidden, err = g.alloc(rows * cfg.Inner); err != nil {
		return err
	}
	if g.gradOut, err = g.alloc(rows * cfg.Hidden); err != nil {
		return err
	}
	g.y, g.hidden = make([]*cuda.Memory, cfg.Layers), make([]*cuda.Memory, cfg.Layers)
	for i := range cfg.Layers {
		if g.y[i], err = g.alloc(rows * cfg.Hidden); err != nil {
			return err
		}
		if g.hidden[i], err = g.alloc(rows * cfg.Inner); err != nil {
			return err
		}
	}
	return nil
}

// load makes the stream, compiles or finds the kernels, and prepares their launches: only arguments
// and grids change between starts.
func (g *gpu) load(ctx context.Context) error {
	d := g.comm.Device()
	stream, err := d.Context().NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	g.stream = stream
	g.made = append(g.made, stream.Close)
	program, err := enginegpu.LoadLocal(ctx, d.Context(), d.Kernels(), enginegpu.Source{
		Spec:   kernel.Spec{Name: "moe experts", Source: kernelSource, Headers: device.Headers(), Arch: d.Arch()},
		Extern: []string{"moe_product", "moe_gradient"},
	})
	if err != nil {
		return err
	}
	g.made = append(g.made, program.Close)
	shape := cuda.LaunchConfig{Block: cuda.Dim{X: tile, Y: tile}}
	if g.product, err = enginegpu.NewLaunch(program.Functions(0)[0], shape, productArgs{}); err != nil {
		return err
	}
	g.gradient, err = enginegpu.NewLaunch(program.Functions(0)[1], shape, gradientArgs{})
	return err
}

// alloc gives memory of the GPU for so many numbers.
func (g *gpu) alloc(numbers int) (*cuda.Memory, error) {
	m, err := g.comm.Device().Context().Alloc(4 * numbers)
	if err == nil {
		g.made = append(g.made, m.Close)
	}
	return m, err
}

// tensor views the GPU's side.
func (b buffer) tensor(d weft.DType, rows, columns int) weft.Tensor {
	return weft.DeviceTensor(b.device.Pointer(), d, rows, columns)
}

// upload enqueues a copy of a tensor of the host's.
func (g *gpu) upload(b buffer, t weft.Tensor) error {
	return g.stream.Upload(b.device.Pointer(), b.host.Bytes()[:copy(b.host.Bytes(), t.Raw())])
}

// finish copies each buffer's content back, when all enqueued work has ended.
func (g *gpu) finish(ctx context.Context, from []buffer, to []weft.Tensor) error {
	for i, b := range from {
		if err := g.stream.Download(b.host.Bytes()[:to[i].Bytes()], b.device.Pointer()); err != nil {
			return err
		}
	}
	if err := g.comm.Wait(ctx, weft.StreamOf(g.stream)); err != nil {
		return err
	}
	for i, b := range from {
		copy(to[i].Raw(), b.host.Bytes())
	}
	return nil
}

func tiles(n int) uint32 { return uint32((n + tile - 1) / tile) }

// multiply enqueues a product for the rows of all experts.
func (g *gpu) multiply(p productArgs, experts int) error {
	*g.product.Args = p
	g.product.SetGrid(cuda.Dim{X: tiles(int(p.out)), Y: rowBlocks, Z: uint32(experts)})
	return g.product.Start(g.stream)
}

// learn enqueues a gradient of all experts' parameters.
func (g *gpu) learn(p gradientArgs, experts int) error {
	*g.gradient.Args = p
	g.gradient.SetGrid(cuda.Dim{X: tiles(int(p.out)), Y: tiles(int(p.in)), Z: uint32(experts)})
	return g.gradient.Start(g.stream)
}

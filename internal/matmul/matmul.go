// Package matmul multiplies matrices on a GPU: work that has the GPU to itself, or shares it with
// the tested or measured operations. The result can be checked to the last bit, because the
// matrices have small integers, whose sums are exact in any order.
package matmul

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine/gpu"
)

//go:embed matmul.cu
var source string

// The constants and kernels of matmul.cu.
const (
	tile    = 64
	step    = 32
	threads = 128
	name    = "weft_matmul"
)

// Kernel is the code for an architecture, as sm_90a.
func Kernel(arch string) kernel.Spec {
	return kernel.Spec{Name: "matmul", Source: source, Headers: device.Headers(), Arch: arch}
}

// Shape is how large a product is: of [Rows, Inner] and [Inner, Columns].
type Shape struct{ Rows, Columns, Inner int }

// most keeps a sum of products of numbers from -2 to 2 exact in fp32.
const most = 1 << 22

// Validate checks a shape.
func (s Shape) Validate() error {
	if s.Rows < 1 || s.Columns < 1 || s.Inner < 1 || s.Inner > most || s.Rows%tile != 0 ||
		s.Columns%tile != 0 || s.Inner%step != 0 {
		return fmt.Errorf("a product of %v: want multiples of %d rows and columns, and of %d up to %d "+
			"in between", s, tile, step, most)
	}
	return nil
}

func (s Shape) String() string { return fmt.Sprintf("%dx%dx%d", s.Rows, s.Columns, s.Inner) }

// Flops is how many operations it takes.
func (s Shape) Flops() float64 { return 2 * float64(s.Rows) * float64(s.Columns) * float64(s.Inner) }

// Product is a product on a GPU, which can be made any number of times. It is for one goroutine at
// a time.
type Product struct {
	Shape
	context *cuda.Context
	program *gpu.Program
	memory  [3]*cuda.Memory // a, b and c
	launch  *cuda.Launch
	a, b    []weft.BF16
}

// New draws two matrices and brings them to the GPU. The caller closes it.
func New(ctx context.Context, c *cuda.Context, cache *kernel.Cache, s Shape, seed uint64) (_ *Product, err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	arch, err := c.Device().Architecture()
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	p := &Product{Shape: s, context: c, a: integers(rng, s.Rows*s.Inner), b: integers(rng, s.Columns*s.Inner)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.program, err = gpu.LoadLocal(ctx, c, cache, gpu.Source{Spec: Kernel(arch), Extern: []string{name}}); err != nil {
		return nil, err
	}
	for i, bytes := range []int{2 * len(p.a), 2 * len(p.b), 4 * s.Rows * s.Columns} {
		if p.memory[i], err = c.Alloc(bytes); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(c.Upload(p.memory[0].Pointer(), weft.TensorOf(p.a).Raw()),
		c.Upload(p.memory[1].Pointer(), weft.TensorOf(p.b).Raw())); err != nil {
		return nil, err
	}
	config := cuda.LaunchConfig{
		Grid:  cuda.Dim{X: uint32(s.Columns / tile), Y: uint32(s.Rows / tile)},
		Block: cuda.Dim{X: threads},
	}
	p.launch, err = p.program.Functions(0)[0].Prepare(config, p.memory[0].Pointer(), p.memory[1].Pointer(),
		p.memory[2].Pointer(), uint32(s.Inner))
	return p, err
}

// integers are numbers from -2 to 2, as bf16.
func integers(rng *rand.Rand, n int) []weft.BF16 {
	of := [...]weft.BF16{0xC000, 0xBF80, 0, 0x3F80, 0x4000}
	v := make([]weft.BF16, n)
	for i := range v {
		v[i] = of[rng.IntN(len(of))]
	}
	return v
}

// integer is the inverse.
func integer(v weft.BF16) int {
	n := 0
	switch v &^ 0x8000 {
	case 0x3F80:
		n = 1
	case 0x4000:
		n = 2
	}
	if v&0x8000 != 0 {
		return -n
	}
	return n
}

// Start enqueues the product.
func (p *Product) Start(s *cuda.Stream) error { return p.launch.Start(s) }

// Spoil enqueues filling the result with a value that no product has.
func (p *Product) Spoil(s *cuda.Stream) error {
	return s.Memset(p.memory[2].Pointer(), 0xFF, p.memory[2].Size())
}

// Check compares some numbers of each tile with the host's. Nothing of the product may be under
// way.
func (p *Product) Check() error {
	got := make([]float32, p.Rows*p.Columns)
	if err := p.context.Download(weft.TensorOf(got).Raw(), p.memory[2].Pointer()); err != nil {
		return err
	}
	const each = 2
	rng := rand.New(rand.NewPCG(1, 2))
	for row := 0; row < p.Rows; row += tile {
		for column := 0; column < p.Columns; column += tile {
			for range each {
				if err := p.checkAt(got, row+rng.IntN(tile), column+rng.IntN(tile)); err != nil {
					return err
				}
			}
		}
	}
	for i, v := range got { // an element that was not written is no number
		if v != v {
			return fmt.Errorf("the product of %v has nothing in row %d, column %d", p.Shape, i/p.Columns, i%p.Columns)
		}
	}
	return nil
}

func (p *Product) checkAt(got []float32, row, column int) error {
	a, b, want := p.a[row*p.Inner:], p.b[column*p.Inner:], 0
	for k := range p.Inner {
		want += integer(a[k]) * integer(b[k])
	}
	if v := got[row*p.Columns+column]; v != float32(want) {
		return fmt.Errorf("the product of %v has %v in row %d, column %d, want %d", p.Shape, v, row, column, want)
	}
	return nil
}

// Close gives everything back. Nothing of the product may be under way.
func (p *Product) Close() error {
	var errs []error
	for _, m := range p.memory {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if p.program != nil {
		errs = append(errs, p.program.Close())
	}
	return errors.Join(errs...)
}

package weft

import (
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
)

// SetKernels makes another cache the process's, and gives what undoes it.
func SetKernels(c *kernel.Cache) (undo func()) {
	before := kernels
	kernels = func() *kernel.Cache { return c }
	return func() { kernels = before }
}

// Mirrored reports whether kernels see a copy of the abort word.
func (d *Device) Mirrored() bool { return d.abort.copy != nil }

// RefuseSegment says why memory of which CUDA tells this cannot be registered.
func (d *Device) RefuseSegment(p cuda.Pointer, size int, info cuda.PointerInfo, otherProcesses bool) error {
	return d.refuseSegment("test", p, size, info, otherProcesses)
}

// WithDriver makes WithGPU ask another driver than the machine's.
func WithDriver(d *cuda.Driver, err error) Option {
	return func(o *config) { o.driver = func() (*cuda.Driver, error) { return d, err } }
}

// Card is what ranks of other hosts write into this rank's part by.
func (w *Window) Card() []byte { return w.region.Card() }

// Retired is how many aliases of windows are kept for what may come.
func (c *Comm) Retired() int { return len(c.reach.retired) }

var Loggers = loggers

var OnHost = WithHostID

package cuda

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// Context is a device's primary context: the one that the CUDA runtime, PyTorch and every other
// library of the process use.
//
// A Context owns one reference to it. Objects of the context must be closed before it. This
// process's memory on the device is freed with the last reference. It is safe for concurrent use,
// by any goroutine on any thread.
type Context struct {
	driver *Driver
	table  *sys.Table
	device *Device
	handle sys.Context
	closed atomic.Bool
}

// Primary retains the device's primary context, and creates it if it does not exist. Making it
// takes a good part of a second.
func (d *Device) Primary() (*Context, error) {
	handle := new(sys.Context)
	if err := d.driver.check("cuDevicePrimaryCtxRetain",
		d.driver.table.DevicePrimaryCtxRetain(handle, d.handle)); err != nil {
		return nil, err
	}
	c := &Context{driver: d.driver, table: d.driver.table, device: d, handle: *handle}
	if err := d.spares.open(c); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// Close gives the reference back. The last Context of a device to be closed destroys the streams
// that were kept ([Stream.Close]). Further calls do nothing.
func (c *Context) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	var errs []error
	streams, word := c.device.spares.close()
	for _, s := range streams {
		errs = append(errs, c.destroyStream(s.handle))
	}
	if word != 0 {
		// A capture of another owner's refuses it. Then the word goes with the primary context.
		if err := c.check("cuMemFree", c.table.MemFree(c.handle, word)); !errors.Is(err, ErrCaptureUnsupported) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, c.release())...)
}

func (c *Context) release() error {
	return c.driver.check("cuDevicePrimaryCtxRelease", c.table.DevicePrimaryCtxRelease(c.device.handle))
}

// Device is the context's device.
func (c *Context) Device() *Device { return c.device }

// Handle is the driver's CUcontext.
func (c *Context) Handle() uintptr { return uintptr(c.handle) }

// Synchronize waits until the device has done all that was asked of it in this context. It is not
// bounded: see [Stream.Wait].
func (c *Context) Synchronize() error {
	const call = "cuCtxSynchronize"
	if err := c.use(call); err != nil {
		return err
	}
	return c.check(call, c.table.CtxSynchronize(c.handle))
}

// SetCurrent makes the context the calling thread's. It is for a goroutine that is locked to its
// thread and calls libraries that expect a current context; no method of this package needs it.
func (c *Context) SetCurrent() error {
	const call = "cuCtxSetCurrent"
	if err := c.use(call); err != nil {
		return err
	}
	return c.check(call, c.table.CtxSetCurrent(c.handle))
}

// Bind locks the goroutine to its thread and makes the context current there; unbind puts back the
// thread's own context and unlocks. Calls of this package leave their context current on the thread
// that they ran on. That does not disturb Go's own threads. A host that keeps another context
// current on its thread (a Python thread with another device) calls this package between Bind and
// unbind.
func (c *Context) Bind() (unbind func(), err error) {
	runtime.LockOSThread()
	previous := new(sys.Context)
	err = c.driver.check("cuCtxGetCurrent", c.table.CtxGetCurrent(previous))
	if err == nil {
		err = c.SetCurrent()
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	bound := true
	return func() {
		if !bound {
			return
		}
		bound = false
		c.table.CtxSetCurrent(*previous) // an error here would show in the next call too
		runtime.UnlockOSThread()
	}, nil
}

// MemInfo is how much of the device's memory is free, and how much there is, in bytes.
func (c *Context) MemInfo() (free, total uint64, err error) {
	const call = "cuMemGetInfo"
	if err := c.use(call); err != nil {
		return 0, 0, err
	}
	f, t := new(uint64), new(uint64)
	err = c.check(call, c.table.MemGetInfo(c.handle, f, t))
	return *f, *t, err
}

// PriorityRange are the least and the greatest priority of streams. Greater priorities are smaller
// numbers.
func (c *Context) PriorityRange() (least, greatest int, err error) {
	const call = "cuCtxGetStreamPriorityRange"
	if err := c.use(call); err != nil {
		return 0, 0, err
	}
	l, g := new(int32), new(int32)
	err = c.check(call, c.table.CtxGetStreamPriorityRange(c.handle, l, g))
	return int(*l), int(*g), err
}

// use refuses a context that does not exist, or no longer: calls would still work in it while
// another owner in the process retains the device's.
func (c *Context) use(call string) error {
	switch {
	case c == nil:
		return missing(call, "context")
	case c.closed.Load():
		return closed(call)
	}
	return nil
}

func (c *Context) check(call string, r sys.Result) error { return c.driver.check(call, r) }

// modes exchange a thread's capture mode with the driver's.
var modes = sync.Pool{New: func() any { return new(int32) }}

// asking makes a call that queries or waits for work, in a capture mode of the thread in which no
// capture forbids it. In any other mode the driver would refuse it while a thread of the process
// captures in global mode, PyTorch's default, and would break that capture. A stream that captures
// itself cannot be asked in any mode.
func (c *Context) asking(call func() sys.Result) sys.Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode := modes.Get().(*int32)
	defer modes.Put(mode)
	*mode = sys.CaptureRelaxed
	if c.table.ThreadExchangeStreamCaptureMode(mode) != sys.Success {
		return call() // a driver before CUDA 10.1, or one that refuses every call
	}
	r := call()
	c.table.ThreadExchangeStreamCaptureMode(mode) // it was the thread's own
	return r
}

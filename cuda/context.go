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
// A Context owns one reference to it. What is made in the context must be closed before; the
// device's memory of this process goes with the last reference. It is safe for concurrent use, by
// any goroutine on any thread.
type Context struct {
	driver *Driver
	table  *sys.Table
	device *Device
	handle sys.Context
	closed atomic.Bool
}

// Primary retains the device's primary context, and makes it if nobody has. Making it takes a good
// part of a second.
func (d *Device) Primary() (*Context, error) {
	handle := new(sys.Context)
	if err := d.driver.check("cuDevicePrimaryCtxRetain",
		d.driver.table.DevicePrimaryCtxRetain(handle, d.handle)); err != nil {
		return nil, err
	}
	d.spares.open()
	return &Context{driver: d.driver, table: d.driver.table, device: d, handle: *handle}, nil
}

// Close gives the reference back. The last Context of a device to be closed destroys the streams
// that were kept ([Stream.Close]). Further calls do nothing.
func (c *Context) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, s := range c.device.spares.close() {
		errs = append(errs, c.destroyStream(s.handle))
	}
	errs = append(errs, c.driver.check("cuDevicePrimaryCtxRelease", c.table.DevicePrimaryCtxRelease(c.device.handle)))
	return errors.Join(errs...)
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
// thread's own context and unlocks. Calls of this package leave their context current on whatever
// thread they ran on. Go's own threads do not mind. Whoever is called by a host that has its own
// ideas about the thread (a Python thread with another device) calls this package between Bind and
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
		c.table.CtxSetCurrent(*previous) // a driver that refuses what it said itself will refuse the next call too
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

// use refuses a context that is not there, or no longer: somebody else of the process may still
// have the device's, in which calls would work until they leave.
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

// modes are what the driver swaps a thread's mode of capture with.
var modes = sync.Pool{New: func() any { return new(int32) }}

// asking makes a call that asks whether work is done, or waits for it, in a mode of the thread's in
// which no capture minds. Otherwise the driver would refuse it while any thread of the process
// captures in global mode, as PyTorch does unless told otherwise, and break that capture. A stream
// that captures itself cannot be asked in any mode.
func (c *Context) asking(call func() sys.Result) sys.Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode := modes.Get().(*int32)
	defer modes.Put(mode)
	*mode = sys.CaptureRelaxed
	if c.table.ThreadExchangeStreamCaptureMode(mode) != sys.Success {
		return call() // a driver before CUDA 10.1, or one that refuses whatever it is asked
	}
	r := call()
	c.table.ThreadExchangeStreamCaptureMode(mode) // it was the thread's own
	return r
}

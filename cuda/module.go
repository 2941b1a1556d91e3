package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// Module is code on a device. It is safe for concurrent use.
type Module struct {
	context *Context
	handle  sys.Module
	closed  atomic.Bool
}

// LoadModule loads a cubin, or PTX, which the driver compiles first. Loading may wait for the
// device, so it has no place inside an operation or a capture.
func (c *Context) LoadModule(image []byte) (*Module, error) {
	const call = "cuModuleLoadDataEx"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if len(image) == 0 {
		return nil, invalid(call, "an empty image")
	}
	image = append(image[:len(image):len(image)], 0) // PTX ends with a NUL
	log := make([]byte, 8<<10)
	options := sys.JITOptions
	values := &sys.JITValues{ErrorLog: &log[0], ErrorLogSize: uintptr(len(log))}
	handle := new(sys.Module)
	err := c.check(call, c.table.ModuleLoadDataEx(c.handle, handle, &image[0], uint32(len(options)), &options[0], values))
	if failed := new(Error); errors.As(err, &failed) {
		log[len(log)-1] = 0
		if text := strings.TrimSpace(dl.GoString(&log[0])); text != "" {
			failed.Text += ": " + text
		}
	}
	if err != nil {
		return nil, err
	}
	return &Module{context: c, handle: *handle}, nil
}

// Close unloads the code. Nothing of it may still run. Further calls do nothing.
func (m *Module) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.context.check("cuModuleUnload", m.context.table.ModuleUnload(m.context.handle, m.handle))
}

// Global is where a variable of the module is, and how many bytes it has. The error wraps
// [ErrNotFound] if there is none.
func (m *Module) Global(name string) (Pointer, int, error) {
	const call = "cuModuleGetGlobal"
	if m.closed.Load() {
		return 0, 0, closed(call)
	}
	p, size := new(sys.Pointer), new(uint64)
	r := m.context.table.ModuleGetGlobal(m.context.handle, p, size, m.handle, sys.CString(name))
	if err := m.context.check(call, r); err != nil {
		return 0, 0, fmt.Errorf("variable %s: %w", name, err)
	}
	return Pointer(*p), int(*size), nil
}

// Function is a kernel of a module, and lives as long.
type Function struct {
	module *Module
	name   string
	handle sys.Function
}

// Function finds a kernel by its name, which is mangled unless it was declared extern "C"
// (kernel.Cubin.Symbol says how), and loads it. The error wraps [ErrNotFound] if there is none.
func (m *Module) Function(name string) (*Function, error) {
	const call = "cuModuleGetFunction"
	if m.closed.Load() {
		return nil, closed(call)
	}
	handle := new(sys.Function)
	r := m.context.table.ModuleGetFunction(m.context.handle, handle, m.handle, sys.CString(name))
	if err := m.context.check(call, r); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	f := &Function{module: m, name: name, handle: *handle}
	// Drivers load code lazily, at the first launch if it is left to them. That may wait for the
	// device, where a kernel may wait for the data of this launch. Older drivers, which cannot be
	// asked, load it by now.
	if r := f.table().FuncLoad(f.context(), f.handle); r != sys.Missing {
		if err := f.check("cuFuncLoad", r); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Name is the name that the kernel was found by.
func (f *Function) Name() string { return f.name }

// FunctionAttributes are a kernel's resources. Sizes are in bytes.
type FunctionAttributes struct {
	Registers        int // of a thread
	LocalBytes       int // of a thread: spilled registers and arrays
	StaticShared     int // of a block
	MaxDynamicShared int // of a block: the most that launches may ask for
	ConstBytes       int
	MaxThreads       int // of a block
	PTXVersion       int // 90 for sm_90
	BinaryVersion    int
}

// Attributes asks the driver for the kernel's resources.
func (f *Function) Attributes() (FunctionAttributes, error) {
	var a FunctionAttributes
	for _, ask := range []struct {
		attribute int32
		to        *int
	}{
		{sys.FuncNumRegs, &a.Registers},
		{sys.FuncLocalSizeBytes, &a.LocalBytes},
		{sys.FuncSharedSizeBytes, &a.StaticShared},
		{sys.FuncMaxDynamicSharedSizeBytes, &a.MaxDynamicShared},
		{sys.FuncConstSizeBytes, &a.ConstBytes},
		{sys.FuncMaxThreadsPerBlock, &a.MaxThreads},
		{sys.FuncPTXVersion, &a.PTXVersion},
		{sys.FuncBinaryVersion, &a.BinaryVersion},
	} {
		const call = "cuFuncGetAttribute"
		if f.module.closed.Load() {
			return FunctionAttributes{}, closed(call)
		}
		value := new(int32)
		if err := f.check(call, f.table().FuncGetAttribute(f.context(), value, ask.attribute, f.handle)); err != nil {
			return FunctionAttributes{}, err
		}
		*ask.to = int(*value)
	}
	return a, nil
}

// SetMaxDynamicShared lets launches ask for that much dynamic shared memory; more than 48 KiB must
// be allowed in this way. The limit is [SharedMemoryPerBlockOptIn] less the kernel's static shared
// memory.
func (f *Function) SetMaxDynamicShared(bytes int) error {
	return f.set(sys.FuncMaxDynamicSharedSizeBytes, bytes)
}

// PreferShared says how much of the memory that an SM has for cache and shared memory is to be
// shared where this kernel runs, in percent of the most. An SM changes the split only while it is
// idle, so kernels that must fit beside each other should all prefer the split that all need.
func (f *Function) PreferShared(percent int) error {
	return f.set(sys.FuncPreferredSharedMemoryCarveout, percent)
}

// AllowLargeClusters lets launches have clusters of more than 8 blocks, which not every device of
// the architecture can run.
func (f *Function) AllowLargeClusters() error { return f.set(sys.FuncNonPortableClusterSizeAllowed, 1) }

func (f *Function) set(attribute int32, value int) error {
	const call = "cuFuncSetAttribute"
	if f.module.closed.Load() {
		return closed(call)
	}
	return f.check(call, f.table().FuncSetAttribute(f.context(), f.handle, attribute, int32(value)))
}

// Occupancy is how many blocks of so many threads, with so many bytes of dynamic shared memory, one
// multiprocessor runs at once.
func (f *Function) Occupancy(threads, shared int) (int, error) {
	const call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
	if f.module.closed.Load() {
		return 0, closed(call)
	}
	if shared < 0 {
		return 0, invalid(call, "%d bytes of shared memory", shared)
	}
	blocks := new(int32)
	err := f.check(call, f.table().OccupancyMaxActiveBlocksPerMultiprocessor(f.context(), blocks, f.handle,
		int32(threads), uint64(shared)))
	return int(*blocks), err
}

// MaxClusters is how many clusters of such a launch the device runs at once. The launch's grid does
// not matter.
func (f *Function) MaxClusters(c LaunchConfig) (int, error) {
	const call = "cuOccupancyMaxActiveClusters"
	if f.module.closed.Load() {
		return 0, closed(call)
	}
	l, err := f.shape(c)
	if err != nil {
		return 0, err
	}
	clusters := new(int32)
	err = f.check(call, f.table().OccupancyMaxActiveClusters(f.context(), clusters, f.handle, &l.config))
	return int(*clusters), err
}

func (f *Function) table() *sys.Table    { return f.module.context.table }
func (f *Function) context() sys.Context { return f.module.context.handle }

// check names the kernel beside the call.
func (f *Function) check(call string, r sys.Result) error {
	if r == sys.Success {
		return nil
	}
	return fmt.Errorf("kernel %s: %w", f.name, f.module.context.driver.failure(call, r))
}

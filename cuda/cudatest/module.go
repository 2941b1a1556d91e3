package cudatest

import (
	"cmp"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// A kernel is a Go function that plays one, or a kernel of a module's image.
type kernel struct {
	name string
	Code
}

type module struct {
	owner   *primary
	globals map[string]*region
	code    map[string]Code // of an image; nil for one that is anything
	loaded  []sys.Function
}

type function struct {
	owner         *primary
	kernel        *kernel
	maxShared     int32
	largeClusters bool
}

// Kernel registers the function that plays the kernel of a name, in every module. The function
// takes a [*Call] and then the kernel's parameters as Go values of their sizes (int32, uint64,
// [cuda.Pointer], structs), and returns nothing. Anything else is a mistake that Check reports.
func (m *Machine) Kernel(name string, run any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := reflect.ValueOf(run)
	if v.Kind() != reflect.Func || v.Type().NumIn() == 0 || v.Type().In(0) != reflect.TypeFor[*Call]() ||
		v.Type().NumOut() != 0 {
		m.misuse(0, "kernel %s is a %T, not a function of a *Call and the parameters", name, run)
		return
	}
	m.kernels[name] = &kernel{name, played(v)}
}

// played is a Go function as code.
func played(f reflect.Value) Code {
	var c Code
	var types []reflect.Type
	end := 0
	for i := 1; i < f.Type().NumIn(); i++ {
		t := f.Type().In(i)
		end = (end + t.Align() - 1) / t.Align() * t.Align()
		c.Parameters = append(c.Parameters, Parameter{Offset: end, Size: int(t.Size())})
		types = append(types, t)
		end += int(t.Size())
	}
	c.Run = func(call *Call, arguments []byte) error {
		values := []reflect.Value{reflect.ValueOf(call)}
		for i, t := range types {
			v := reflect.New(t).Elem()
			if t.Size() > 0 {
				v.Set(reflect.NewAt(t, unsafe.Pointer(&arguments[c.Parameters[i].Offset])).Elem())
			}
			values = append(values, v)
		}
		f.Call(values)
		return nil
	}
	return c
}

// Global registers a variable of so many bytes, of every module that is loaded from now on.
func (m *Machine) Global(name string, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.globals[name] = size
}

// moduleCalls load modules and find what is in them.
func (m *Machine) moduleCalls(t *sys.Table) {
	t.ModuleLoadDataEx = func(c sys.Context, out *sys.Module, image *byte, _ uint32, _ *int32,
		_ *sys.JITValues,
	) sys.Result {
		return m.still("cuModuleLoadDataEx", c, func(p *primary) sys.Result {
			code, result := m.code(image)
			if result != sys.Success {
				return result
			}
			loaded := &module{owner: p, globals: map[string]*region{}, code: code}
			for name, size := range m.globals {
				r, result := m.allocate(p, size, deviceMemory)
				if result != sys.Success {
					return result
				}
				loaded.globals[name] = r
			}
			*out = sys.Module(m.handle())
			m.modules[*out] = loaded
			return sys.Success
		})
	}
	t.ModuleUnload = func(c sys.Context, h sys.Module) sys.Result {
		return m.onModule("cuModuleUnload", c, h, func(loaded *module) sys.Result {
			for _, r := range loaded.globals {
				m.free(r)
			}
			for _, f := range loaded.loaded {
				delete(m.loaded, f)
			}
			delete(m.modules, h)
			return sys.Success
		})
	}
	t.ModuleGetFunction = func(c sys.Context, out *sys.Function, h sys.Module, name *byte) sys.Result {
		return m.onModule("cuModuleGetFunction", c, h, func(loaded *module) sys.Result {
			k := m.kernels[dl.GoString(name)]
			if code, ok := loaded.code[dl.GoString(name)]; ok {
				k = &kernel{dl.GoString(name), code}
			}
			if k == nil {
				return sys.Result(cuda.ErrNotFound)
			}
			*out = sys.Function(m.handle())
			m.loaded[*out] = &function{owner: loaded.owner, kernel: k, maxShared: int32(48<<10 - k.Shared)}
			loaded.loaded = append(loaded.loaded, *out)
			return sys.Success
		})
	}
	t.ModuleGetGlobal = func(c sys.Context, out *sys.Pointer, size *uint64, h sys.Module, name *byte) sys.Result {
		return m.onModule("cuModuleGetGlobal", c, h, func(loaded *module) sys.Result {
			r := loaded.globals[dl.GoString(name)]
			if r == nil {
				return sys.Result(cuda.ErrNotFound)
			}
			*out, *size = sys.Pointer(r.base), uint64(r.size)
			return sys.Success
		})
	}
	m.functionCalls(t)
}

func (m *Machine) functionCalls(t *sys.Table) {
	t.FuncLoad = func(c sys.Context, h sys.Function) sys.Result {
		return m.onFunction("cuFuncLoad", c, h, func(*primary, *function) sys.Result { return sys.Success })
	}
	t.FuncGetAttribute = func(c sys.Context, out *int32, attribute int32, h sys.Function) sys.Result {
		return m.onFunction("cuFuncGetAttribute", c, h, func(_ *primary, f *function) sys.Result {
			*out = map[int32]int32{
				sys.FuncMaxThreadsPerBlock: int32(f.kernel.threads()), sys.FuncNumRegs: int32(m.registers()),
				sys.FuncMaxDynamicSharedSizeBytes: f.maxShared,
				sys.FuncSharedSizeBytes:           int32(f.kernel.Shared),
				sys.FuncPTXVersion:                90, sys.FuncBinaryVersion: 90,
			}[attribute]
			return sys.Success
		})
	}
	t.FuncSetAttribute = func(c sys.Context, h sys.Function, attribute, value int32) sys.Result {
		return m.onFunction("cuFuncSetAttribute", c, h, func(_ *primary, f *function) sys.Result {
			switch {
			case attribute == sys.FuncMaxDynamicSharedSizeBytes && value >= 0 &&
				int(value) <= attributes[cuda.SharedMemoryPerBlockOptIn]-f.kernel.Shared:
				f.maxShared = value
			case attribute == sys.FuncNonPortableClusterSizeAllowed:
				f.largeClusters = value != 0
			case attribute == sys.FuncPreferredSharedMemoryCarveout && value >= -1 && value <= 100:
			default:
				return sys.Result(cuda.ErrInvalidValue)
			}
			return sys.Success
		})
	}
	t.FuncGetParamInfo = func(c sys.Context, h sys.Function, index uint64, offset, size *uint64) sys.Result {
		return m.onFunction("cuFuncGetParamInfo", c, h, func(_ *primary, f *function) sys.Result {
			if index >= uint64(len(f.kernel.Parameters)) {
				return sys.Result(cuda.ErrInvalidValue)
			}
			p := f.kernel.Parameters[index]
			*offset, *size = uint64(p.Offset), uint64(p.Size)
			return sys.Success
		})
	}
	t.OccupancyMaxActiveBlocksPerMultiprocessor = func(c sys.Context, out *int32, h sys.Function, threads int32,
		shared uint64,
	) sys.Result {
		return m.onFunction("cuOccupancyMaxActiveBlocksPerMultiprocessor", c, h, func(_ *primary, f *function) sys.Result {
			*out = m.occupancy(uint32(threads), int(shared)+f.kernel.Shared)
			return sys.Success
		})
	}
	t.OccupancyMaxActiveClusters = func(c sys.Context, out *int32, h sys.Function, config *sys.LaunchConfig) sys.Result {
		return m.onFunction("cuOccupancyMaxActiveClusters", c, h, func(_ *primary, f *function) sys.Result {
			shape, r := m.shape(f, config)
			if r != sys.Success {
				return r
			}
			*out = int32(m.resident(f, shape)) / int32(max(threads(shape.Cluster), 1))
			return sys.Success
		})
	}
}

func (m *Machine) onModule(call string, c sys.Context, h sys.Module, do func(*module) sys.Result) sys.Result {
	return m.still(call, c, func(p *primary) sys.Result {
		loaded := m.modules[h]
		if loaded == nil {
			return m.misuse(cuda.ErrInvalidHandle, "%s of module %#x, which was unloaded", call, uintptr(h))
		}
		if r := m.own(call, "module", loaded.owner, p); r != sys.Success {
			return r
		}
		return do(loaded)
	})
}

func (m *Machine) onFunction(call string, c sys.Context, h sys.Function,
	do func(*primary, *function) sys.Result,
) sys.Result {
	return m.contextCall(call, c, func(p *primary) sys.Result {
		f := m.loaded[h]
		if f == nil {
			return m.misuse(cuda.ErrInvalidHandle, "%s of kernel %#x, whose module was unloaded", call, uintptr(h))
		}
		if r := m.own(call, fmt.Sprintf("kernel %s", f.kernel.name), f.owner, p); r != sys.Success {
			return r
		}
		return do(p, f)
	})
}

// occupancy is how many blocks fit a multiprocessor of the machine.
func (m *Machine) occupancy(threads uint32, shared int) int32 {
	const warp, quarters = 32, 4 // of an SM, each of which has its share of the registers and of a block's warps
	warps := (int(threads) + warp - 1) / warp
	warps = max(1, (warps+quarters-1)/quarters) * quarters
	registers := (m.registers() + 7) &^ 7 * warp // of a warp
	inRegisters := attributes[cuda.RegistersPerMultiprocessor] / quarters / registers * quarters / warps
	blocks := min(attributes[cuda.ThreadsPerMultiprocessor]/max(int(threads), 1),
		attributes[cuda.BlocksPerMultiprocessor], inRegisters)
	per := shared + attributes[cuda.ReservedSharedMemoryPerBlock]
	return int32(min(blocks, attributes[cuda.SharedMemoryPerMultiprocessor]/per))
}

// registers are how many a thread has.
func (m *Machine) registers() int { return cmp.Or(m.config.Registers, 32) }

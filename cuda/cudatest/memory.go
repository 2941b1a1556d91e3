package cudatest

import (
	"os"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// memoryCalls allocate and free.
func (m *Machine) memoryCalls(t *sys.Table) {
	t.MemAlloc = func(c sys.Context, out *sys.Pointer, size uint64) sys.Result {
		return m.still("cuMemAlloc", c, func(p *primary) sys.Result {
			if p.used+size > m.config.Memory {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			r, result := m.allocate(p, int(size), deviceMemory)
			if result == sys.Success {
				p.used += size
				*out = sys.Pointer(r.base)
			}
			return result
		})
	}
	t.MemFree = func(c sys.Context, at sys.Pointer) sys.Result {
		return m.still("cuMemFree", c, func(p *primary) sys.Result {
			r := m.starting(uintptr(at), deviceMemory)
			if r == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuMemFree of %#x, which is not allocated", uint64(at))
			}
			if result := m.own("cuMemFree", "memory", r.owner, p); result != sys.Success {
				return result
			}
			p.used -= uint64(r.size)
			return m.free(r)
		})
	}
	t.MemGetInfo = func(c sys.Context, free, total *uint64) sys.Result {
		return m.contextCall("cuMemGetInfo", c, func(p *primary) sys.Result {
			*free, *total = m.config.Memory-p.used, m.config.Memory
			return sys.Success
		})
	}
	t.MemHostAlloc = func(c sys.Context, out *unsafe.Pointer, size uint64, _ uint32) sys.Result {
		return m.still("cuMemHostAlloc", c, func(p *primary) sys.Result {
			r, result := m.allocate(p, int(size), hostMemory)
			if result == sys.Success {
				*out = unsafe.Pointer(unsafe.SliceData(view(r.base, 1)))
			}
			return result
		})
	}
	t.MemFreeHost = func(c sys.Context, at unsafe.Pointer) sys.Result {
		return m.still("cuMemFreeHost", c, func(*primary) sys.Result {
			r := m.starting(uintptr(at), hostMemory)
			if r == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuMemFreeHost of %p, which is not allocated", at)
			}
			return m.free(r)
		})
	}
	t.MemHostRegister = func(c sys.Context, at unsafe.Pointer, size uint64, _ uint32) sys.Result {
		return m.still("cuMemHostRegister", c, func(p *primary) sys.Result {
			for _, r := range m.regions {
				if r.overlaps(uintptr(at), int(size)) {
					return sys.Result(cuda.ErrHostAlreadyRegistered)
				}
			}
			m.insert(&region{kind: registeredMemory, base: uintptr(at), size: int(size), owner: p})
			return sys.Success
		})
	}
	t.MemHostUnregister = func(c sys.Context, at unsafe.Pointer) sys.Result {
		return m.still("cuMemHostUnregister", c, func(*primary) sys.Result {
			r := m.starting(uintptr(at), registeredMemory)
			if r == nil {
				return m.misuse(cuda.ErrHostNotRegistered, "cuMemHostUnregister of %p, which is not registered", at)
			}
			m.remove(r)
			return sys.Success
		})
	}
	t.MemHostGetDevicePointer = func(c sys.Context, out *sys.Pointer, at unsafe.Pointer, _ uint32) sys.Result {
		return m.contextCall("cuMemHostGetDevicePointer", c, func(*primary) sys.Result {
			if !m.pinned(uintptr(at), 1) {
				return sys.Result(cuda.ErrInvalidValue)
			}
			*out = sys.Pointer(uintptr(at))
			return sys.Success
		})
	}
}

// allocate makes a region with memory of its own.
func (m *Machine) allocate(p *primary, size int, k kind) (*region, sys.Result) {
	f, err := newFile(size, p.device)
	if err != nil {
		return nil, sys.Result(cuda.ErrOutOfMemory)
	}
	base, err := f.mapAnywhere()
	if err != nil {
		f.close()
		return nil, sys.Result(cuda.ErrOutOfMemory)
	}
	r := &region{kind: k, base: base, size: size, owner: p, file: f}
	m.insert(r)
	return r, sys.Success
}

// free takes a region and its memory away. A later access is a fault of the process.
func (m *Machine) free(r *region) sys.Result {
	m.remove(r)
	r.file.close()
	if err := unmap(r.base, r.size); err != nil {
		return m.misuse(cuda.ErrInvalidValue, "unmap %d bytes at %#x: %w", r.size, r.base, err)
	}
	return sys.Success
}

// pointerCalls tell what memory is.
func (m *Machine) pointerCalls(t *sys.Table) {
	t.PointerGetAttributes = func(c sys.Context, n uint32, ask *int32, data *unsafe.Pointer, at sys.Pointer) sys.Result {
		return m.contextCall("cuPointerGetAttributes", c, func(*primary) sys.Result {
			r := m.find(uintptr(at))
			outs := unsafe.Slice(data, n)
			for i, attribute := range unsafe.Slice(ask, n) {
				m.pointerAttribute(r, attribute, outs[i])
			}
			return sys.Success
		})
	}
	t.MemGetAddressRange = func(c sys.Context, base *sys.Pointer, size *uint64, at sys.Pointer) sys.Result {
		return m.contextCall("cuMemGetAddressRange", c, func(*primary) sys.Result {
			r := m.find(uintptr(at))
			if r == nil || r.kind == registeredMemory {
				return sys.Result(cuda.ErrNotFound)
			}
			*base, *size = sys.Pointer(r.base), uint64(r.size)
			return sys.Success
		})
	}
	t.MemGetHandleForAddressRange = func(c sys.Context, out unsafe.Pointer, at sys.Pointer, size uint64, kind int32,
		_ uint64,
	) sys.Result {
		return m.contextCall("cuMemGetHandleForAddressRange", c, func(*primary) sys.Result {
			r, page := m.find(uintptr(at)), uint64(os.Getpagesize())
			switch {
			case kind != sys.MemRangeHandleDMABuf || uint64(at)%page != 0 || size == 0 || size%page != 0:
				return m.misuse(cuda.ErrInvalidValue, "cuMemGetHandleForAddressRange of %d bytes at %#x as %d", size,
					uint64(at), kind)
			case m.config.Attributes[cuda.DMABuf] == 0:
				return sys.Result(cuda.ErrNotSupported)
			case r == nil || r.file == nil && r.kind != mappedMemory || uintptr(at)+uintptr(size) > r.end():
				return sys.Result(cuda.ErrInvalidValue)
			}
			f := r.file
			if r.kind == mappedMemory {
				f = m.shares[r.share]
			}
			fd, err := f.descriptor()
			if err != nil {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			*(*int32)(out) = int32(fd)
			return sys.Success
		})
	}
	t.FlushGPUDirectRDMAWrites = func(c sys.Context, target, scope int32) sys.Result {
		return m.contextCall("cuFlushGPUDirectRDMAWrites", c, func(*primary) sys.Result {
			if target != sys.FlushTargetContext || scope != sys.FlushToOwner {
				return m.misuse(cuda.ErrInvalidValue, "cuFlushGPUDirectRDMAWrites of %d to %d", target, scope)
			}
			return sys.Success
		})
	}
}

// pointerAttribute answers as the driver does: memory that it does not know has no type and no
// device.
func (m *Machine) pointerAttribute(r *region, attribute int32, out unsafe.Pointer) {
	switch attribute {
	case sys.PointerMemoryType:
		*(*uint32)(out) = 0
		if r != nil {
			*(*uint32)(out) = sys.MemoryTypeDevice
			if r.kind == hostMemory || r.kind == registeredMemory {
				*(*uint32)(out) = sys.MemoryTypeHost
			}
		}
	case sys.PointerDeviceOrdinal:
		*(*int32)(out) = -2
		if r != nil {
			*(*int32)(out) = int32(r.owner.device)
		}
	case sys.PointerIsManaged:
		*(*bool)(out) = false
	case sys.PointerIsLegacyIPCCapable:
		*(*bool)(out) = r != nil && r.kind == deviceMemory
	case sys.PointerRangeStart:
		*(*sys.Pointer)(out) = 0
		if r != nil {
			*(*sys.Pointer)(out) = sys.Pointer(r.base)
		}
	case sys.PointerRangeSize:
		*(*uint64)(out) = 0
		if r != nil {
			*(*uint64)(out) = uint64(r.size)
		}
	case sys.PointerAllowedHandleTypes:
		*(*uint64)(out) = 0
		if r != nil && r.kind == mappedMemory {
			*(*uint64)(out) = uint64(r.file.types)
		}
	}
}

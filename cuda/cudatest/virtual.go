package cudatest

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// granularity is what real drivers have: huge pages.
const granularity = 2 << 20

// virtualCalls make allocations, and addresses for them.
func (m *Machine) virtualCalls(t *sys.Table) {
	t.MemGetAllocationGranularity = func(out *uint64, prop *sys.AllocationProp, _ int32) sys.Result {
		return m.deviceCall("cuMemGetAllocationGranularity", sys.Device(prop.Location.ID), func() sys.Result {
			*out = granularity
			return sys.Success
		})
	}
	t.MemCreate = func(c sys.Context, out *sys.Allocation, size uint64, prop *sys.AllocationProp, _ uint64) sys.Result {
		return m.still("cuMemCreate", c, func(*primary) sys.Result {
			d := sys.Device(prop.Location.ID)
			if r := m.device(d); r != sys.Success {
				return r
			}
			p := m.devices[d]
			switch {
			case size == 0 || size%granularity != 0 || prop.Type != sys.MemAllocationTypePinned ||
				prop.Location.Type != sys.MemLocationTypeDevice:
				return m.misuse(cuda.ErrInvalidValue, "cuMemCreate of %d bytes with %+v", size, *prop)
			case prop.HandleTypes&^sys.MemHandleTypePosixFD != 0:
				return sys.Result(cuda.ErrNotSupported) // there is no fabric here
			case p.used+size > m.config.Memory:
				return sys.Result(cuda.ErrOutOfMemory)
			}
			f, err := newFile(int(size), int(d))
			if err != nil {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			f.types, f.counted = prop.HandleTypes, p
			p.used += size
			*out = m.share(f)
			return sys.Success
		})
	}
	t.MemRelease = func(h sys.Allocation) sys.Result {
		return m.call("cuMemRelease", func() sys.Result {
			if m.refs[h] == 0 {
				return m.misuse(cuda.ErrInvalidValue, "cuMemRelease of allocation %#x more often than it was made", uint64(h))
			}
			m.refs[h]--
			m.collect(h)
			return sys.Success
		})
	}
	t.MemRetainAllocationHandle = func(out *sys.Allocation, at sys.Pointer) sys.Result {
		return m.call("cuMemRetainAllocationHandle", func() sys.Result {
			r := m.find(uintptr(at))
			if r == nil || r.kind != mappedMemory {
				return sys.Result(cuda.ErrInvalidValue)
			}
			m.refs[r.share]++
			*out = r.share
			return sys.Success
		})
	}
	t.MemGetAllocationPropertiesFromHandle = func(prop *sys.AllocationProp, h sys.Allocation) sys.Result {
		return m.call("cuMemGetAllocationPropertiesFromHandle", func() sys.Result {
			if m.refs[h] == 0 {
				return m.misuse(cuda.ErrInvalidValue, "properties of allocation %#x, which was released", uint64(h))
			}
			f := m.shares[h]
			*prop = sys.AllocationProp{
				Type: sys.MemAllocationTypePinned, HandleTypes: f.types,
				Location: sys.Location{Type: sys.MemLocationTypeDevice, ID: int32(f.device)},
			}
			return sys.Success
		})
	}
	t.MemExportToShareableHandle = func(out unsafe.Pointer, h sys.Allocation, kind int32, _ uint64) sys.Result {
		return m.call("cuMemExportToShareableHandle", func() sys.Result {
			f := m.shares[h]
			switch {
			case m.refs[h] == 0:
				return m.misuse(cuda.ErrInvalidValue, "export of allocation %#x, which was released", uint64(h))
			case f.types&kind == 0:
				return m.misuse(cuda.ErrInvalidValue,
					"export of an allocation that was made to be shared by %#x, as %#x", f.types, kind)
			}
			fd, err := f.descriptor()
			if err != nil {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			*(*int32)(out) = int32(fd)
			return sys.Success
		})
	}
	t.MemImportFD = func(c sys.Context, out *sys.Allocation, fd uintptr, kind int32) sys.Result {
		return m.still("cuMemImportFromShareableHandle", c, func(p *primary) sys.Result {
			f, err := duplicate(int(fd), p.device)
			if err != nil || f.size == 0 || f.size%granularity != 0 {
				return sys.Result(cuda.ErrInvalidValue)
			}
			f.types = kind
			*out = m.share(f)
			return m.join(*out)
		})
	}
	t.MemImportFabric = func(c sys.Context, _ *sys.Allocation, _ *sys.FabricHandle, _ int32) sys.Result {
		return m.still("cuMemImportFromShareableHandle", c,
			func(*primary) sys.Result { return sys.Result(cuda.ErrNotSupported) })
	}
	m.addressCalls(t)
}

func (m *Machine) addressCalls(t *sys.Table) {
	t.MemAddressReserve = func(out *sys.Pointer, size, _ uint64, _ sys.Pointer, _ uint64) sys.Result {
		return m.call("cuMemAddressReserve", func() sys.Result {
			if size == 0 || size%granularity != 0 {
				return m.misuse(cuda.ErrInvalidValue, "cuMemAddressReserve of %d bytes", size)
			}
			base, err := reserve(int(size))
			if err != nil {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			m.ranges[base] = int(size)
			*out = sys.Pointer(base)
			return sys.Success
		})
	}
	t.MemAddressFree = func(at sys.Pointer, size uint64) sys.Result {
		return m.call("cuMemAddressFree", func() sys.Result {
			if n, ok := m.ranges[uintptr(at)]; !ok || n != int(size) {
				return m.misuse(cuda.ErrInvalidValue,
					"cuMemAddressFree of %d bytes at %#x, which were not reserved", size, uint64(at))
			}
			for _, r := range m.regions {
				if r.overlaps(uintptr(at), int(size)) {
					return m.misuse(cuda.ErrInvalidValue, "cuMemAddressFree of %#x, where memory is mapped", uint64(at))
				}
			}
			delete(m.ranges, uintptr(at))
			if err := unmap(uintptr(at), int(size)); err != nil {
				return m.misuse(cuda.ErrInvalidValue, "cuMemAddressFree: %w", err)
			}
			return sys.Success
		})
	}
	t.MemMap = func(c sys.Context, at sys.Pointer, size, offset uint64, h sys.Allocation, _ uint64) sys.Result {
		return m.still("cuMemMap", c, func(*primary) sys.Result {
			f := m.shares[h]
			switch {
			case m.refs[h] == 0:
				return m.misuse(cuda.ErrInvalidValue, "cuMemMap of allocation %#x, which was released", uint64(h))
			case offset != 0 || int(size) != f.size:
				return m.misuse(cuda.ErrInvalidValue, "cuMemMap of %d bytes at %d of an allocation of %d", size, offset, f.size)
			case !m.reserved(uintptr(at), int(size)):
				return m.misuse(cuda.ErrInvalidValue,
					"cuMemMap of %d bytes to %#x, which is not reserved or not free", size, uint64(at))
			}
			if err := f.mapAt(uintptr(at)); err != nil {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			m.insert(&region{
				kind: mappedMemory, base: uintptr(at), size: f.size, owner: m.devices[f.device], file: f,
				share: h, access: map[int]bool{},
			})
			return sys.Success
		})
	}
	t.MemUnmap = func(c sys.Context, at sys.Pointer, size uint64) sys.Result {
		return m.still("cuMemUnmap", c, func(*primary) sys.Result {
			r := m.starting(uintptr(at), mappedMemory)
			if r == nil || r.size != int(size) {
				return m.misuse(cuda.ErrInvalidValue, "cuMemUnmap of %d bytes at %#x, which is no mapping", size, uint64(at))
			}
			m.remove(r)
			if err := vacate(r.base, r.size); err != nil {
				return m.misuse(cuda.ErrInvalidValue, "cuMemUnmap: %w", err)
			}
			m.collect(r.share)
			return sys.Success
		})
	}
	t.MemSetAccess = func(c sys.Context, at sys.Pointer, size uint64, access *sys.AccessDesc, n uint64) sys.Result {
		return m.still("cuMemSetAccess", c, func(*primary) sys.Result {
			end := uintptr(at) + uintptr(size)
			for base := uintptr(at); base < end; {
				r := m.starting(base, mappedMemory)
				if r == nil || r.end() > end {
					return m.misuse(cuda.ErrInvalidValue,
						"cuMemSetAccess to %d bytes at %#x, which are not all mapped", size, uint64(at))
				}
				for _, a := range unsafe.Slice(access, n) {
					if r := m.device(sys.Device(a.Location.ID)); r != sys.Success || a.Location.Type != sys.MemLocationTypeDevice {
						return sys.Result(cuda.ErrInvalidDevice)
					}
					r.access[int(a.Location.ID)] = a.Flags == sys.MemAccessProtReadWrite
				}
				// What stands in a group's file is not the devices' to touch.
				if m.multicasts[r.share] == nil {
					if err := allow(r.base, r.size); err != nil {
						return sys.Result(cuda.ErrInvalidValue)
					}
				}
				base = r.end()
			}
			return sys.Success
		})
	}
}

// share gives physical memory a handle.
func (m *Machine) share(f *file) sys.Allocation {
	h := sys.Allocation(m.handle())
	m.shares[h], m.refs[h] = f, 1
	return h
}

// collect frees an allocation without a handle and without a mapping.
func (m *Machine) collect(h sys.Allocation) {
	if m.refs[h] > 0 {
		return
	}
	for _, r := range m.regions {
		if r.kind == mappedMemory && r.share == h {
			return
		}
	}
	f := m.shares[h]
	if f.counted != nil {
		f.counted.used -= uint64(f.size)
	}
	if m.binds(f) {
		m.misuses = append(m.misuses, fmt.Errorf("memory of device %d was freed that a multicast group has", f.device))
	}
	if c := m.multicasts[h]; c != nil {
		c.close()
		delete(m.multicasts, h)
	}
	f.close()
	delete(m.shares, h)
	delete(m.refs, h)
}

// reserved says whether a range lies in reserved addresses and nothing is mapped there.
func (m *Machine) reserved(at uintptr, size int) bool {
	for _, r := range m.regions {
		if r.overlaps(at, size) {
			return false
		}
	}
	for base, n := range m.ranges {
		if base <= at && at+uintptr(size) <= base+uintptr(n) {
			return true
		}
	}
	return false
}

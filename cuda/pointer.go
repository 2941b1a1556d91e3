package cuda

import (
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// MemoryKind says where memory is.
type MemoryKind uint8

const (
	// Unregistered memory is the host's own; CUDA knows nothing of it.
	Unregistered MemoryKind = iota
	// Host memory is pinned.
	Host
	// OnDevice memory is a device's.
	OnDevice
)

// PointerInfo is the driver's description of an address.
type PointerInfo struct {
	Kind    MemoryKind
	Device  *Device // where the memory is, or which device it was pinned for; nil if unregistered
	Managed bool    // it moves between host and device by itself
	// Virtual: the memory was made of allocations that were mapped, as [Virtual] does.
	// [Context.RetainAllocation] gets at them; cudaIpc does not.
	Virtual bool
	IPC     bool // [Context.IPCHandle] can share it
	Share   HandleType
	Base    Pointer // of the allocation, or of the mapping, that the address is in
	Size    int     // of the same, in bytes
}

// Inspect asks the driver about an address. An address that CUDA does not know is no error: it is
// [Unregistered].
func (c *Context) Inspect(p Pointer) (PointerInfo, error) {
	const call = "cuPointerGetAttributes"
	if err := c.use(call); err != nil {
		return PointerInfo{}, err
	}
	out := new(struct {
		kind, ordinal uint32
		managed, ipc  uint32 // the driver writes one byte of it
		handles       uint64
		base          sys.Pointer
		size          uint64
	})
	out.ordinal = ^uint32(0)
	attributes := []int32{
		sys.PointerMemoryType, sys.PointerDeviceOrdinal, sys.PointerIsManaged, sys.PointerRangeStart, sys.PointerRangeSize,
		sys.PointerAllowedHandleTypes, sys.PointerIsLegacyIPCCapable,
	}
	data := []unsafe.Pointer{
		unsafe.Pointer(&out.kind), unsafe.Pointer(&out.ordinal), unsafe.Pointer(&out.managed),
		unsafe.Pointer(&out.base), unsafe.Pointer(&out.size),
		unsafe.Pointer(&out.handles), unsafe.Pointer(&out.ipc),
	}
	r := c.table.PointerGetAttributes(c.handle, uint32(len(attributes)), &attributes[0], &data[0], sys.Pointer(p))
	if err := c.check(call, r); err != nil {
		return PointerInfo{}, err
	}
	info := PointerInfo{Managed: out.managed != 0, IPC: out.ipc != 0, Base: Pointer(out.base), Size: int(out.size)}
	switch out.kind {
	case sys.MemoryTypeHost:
		info.Kind = Host
	case sys.MemoryTypeDevice:
		info.Kind = OnDevice
	default:
		return PointerInfo{}, nil
	}
	if int(out.ordinal) < len(c.driver.devices) {
		info.Device = c.driver.devices[out.ordinal]
	}
	if info.Kind == Host {
		return info, nil
	}
	return c.inspectDevice(p, info, HandleType(out.handles))
}

// inspectDevice adds the properties of device memory.
func (c *Context) inspectDevice(p Pointer, info PointerInfo, handles HandleType) (PointerInfo, error) {
	base, size := new(sys.Pointer), new(uint64)
	if err := c.check("cuMemGetAddressRange",
		c.table.MemGetAddressRange(c.handle, base, size, sys.Pointer(p))); err != nil {
		return PointerInfo{}, err
	}
	info.Base, info.Size = Pointer(*base), int(*size)
	// Only a mapping has an allocation to retain; for other memory the call fails, which is the
	// answer.
	handle := new(sys.Allocation)
	if c.table.MemRetainAllocationHandle(handle, sys.Pointer(p)) != sys.Success {
		return info, nil
	}
	info.Virtual, info.Share = true, handles
	return info, c.check("cuMemRelease", c.table.MemRelease(*handle))
}

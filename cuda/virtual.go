package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// HandleType says how an allocation can be shared with other processes: a set of bits.
type HandleType int32

const (
	// NotShared allocations stay in their process.
	NotShared HandleType = sys.MemHandleTypeNone
	// ShareFD: as a file descriptor, between processes of one host.
	ShareFD HandleType = sys.MemHandleTypePosixFD
	// ShareFabric: as 64 bytes, between hosts of one NVLink domain. No machine on which this
	// package was tested has such a fabric: its support compiles and passes the right arguments,
	// and is untested beyond.
	ShareFabric HandleType = sys.MemHandleTypeFabric
)

// FabricHandle is an allocation's name in an NVLink domain.
type FabricHandle [64]byte

// AllocationOptions say how an allocation is made.
type AllocationOptions struct {
	Share HandleType
	// RDMA lets network adapters reach the memory; needs [GPUDirectRDMAVirtual].
	RDMA bool
}

// Granularity is the unit of the sizes of allocations on the device, in bytes: the minimum, and the
// one for best speed.
func (d *Device) Granularity(o AllocationOptions) (least, best int, err error) {
	const call = "cuMemGetAllocationGranularity"
	l, b := new(uint64), new(uint64)
	err = d.driver.check(call, d.driver.table.MemGetAllocationGranularity(l, d.properties(o), sys.MemGranularityMinimum))
	if err == nil {
		err = d.driver.check(call, d.driver.table.MemGetAllocationGranularity(b, d.properties(o),
			sys.MemGranularityRecommended))
	}
	return int(*l), int(*b), err
}

func (d *Device) properties(o AllocationOptions) *sys.AllocationProp {
	p := &sys.AllocationProp{
		Type:        sys.MemAllocationTypePinned,
		HandleTypes: int32(o.Share),
		Location:    sys.Location{Type: sys.MemLocationTypeDevice, ID: int32(d.handle)},
	}
	if o.RDMA {
		p.GPUDirectRDMA = 1
	}
	return p
}

// Allocation is physical memory of a device. It has no address until it is mapped, and lives until
// it is closed and unmapped everywhere, in every process.
type Allocation struct {
	context *Context
	handle  sys.Allocation
	size    int
	closed  atomic.Bool
}

// NewAllocation makes an allocation of size bytes, rounded up to the best granularity. It holds
// zeros.
func (c *Context) NewAllocation(size int, o AllocationOptions) (*Allocation, error) {
	const call = "cuMemCreate"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, invalid(call, "%d bytes", size)
	}
	_, granularity, err := c.device.Granularity(o)
	if err != nil {
		return nil, err
	}
	if rest := size % granularity; rest != 0 {
		size += granularity - rest
	}
	handle := new(sys.Allocation)
	if err := c.check(call, c.table.MemCreate(c.handle, handle, uint64(size), c.device.properties(o), 0)); err != nil {
		return nil, err
	}
	return &Allocation{context: c, handle: *handle, size: size}, nil
}

// ImportFD takes part in an allocation of size bytes that another process exported. The descriptor
// stays the caller's, who may close it at once.
func (c *Context) ImportFD(fd *os.File, size int) (*Allocation, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, invalid(call, "%d bytes", size)
	}
	connection, err := fd.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	handle := new(sys.Allocation)
	var r sys.Result
	// Control, unlike Fd, leaves the file as it is.
	if err := connection.Control(func(n uintptr) {
		r = c.table.MemImportFD(c.handle, handle, n,
			sys.MemHandleTypePosixFD)
	}); err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	if err := c.check(call, r); err != nil {
		return nil, err
	}
	return &Allocation{context: c, handle: *handle, size: size}, nil
}

// ImportFabric takes part in an allocation of size bytes that a process of another host exported.
// See [ShareFabric].
func (c *Context) ImportFabric(h FabricHandle, size int) (*Allocation, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, invalid(call, "%d bytes", size)
	}
	handle, shared := new(sys.Allocation), sys.FabricHandle(h)
	if err := c.check(call, c.table.MemImportFabric(c.handle, handle, &shared, sys.MemHandleTypeFabric)); err != nil {
		return nil, err
	}
	return &Allocation{context: c, handle: *handle, size: size}, nil
}

// RetainAllocation retains the allocation that is mapped at an address, which another allocator may
// have made. Its size is that of the mapping at p (see [Context.Inspect]); size is the caller's
// idea of it.
func (c *Context) RetainAllocation(p Pointer, size int) (*Allocation, error) {
	const call = "cuMemRetainAllocationHandle"
	if err := c.use(call); err != nil {
		return nil, err
	}
	handle := new(sys.Allocation)
	if err := c.check(call, c.table.MemRetainAllocationHandle(handle, sys.Pointer(p))); err != nil {
		return nil, err
	}
	return &Allocation{context: c, handle: *handle, size: size}, nil
}

// Close gives the allocation back. Mappings of it stay. Further calls do nothing.
func (a *Allocation) Close() error {
	if a.closed.Swap(true) {
		return nil
	}
	return a.context.check("cuMemRelease", a.context.table.MemRelease(a.handle))
}

// Size is the allocation's size in bytes.
func (a *Allocation) Size() int { return a.size }

// Share is how the allocation may be exported.
func (a *Allocation) Share() (HandleType, error) {
	const call = "cuMemGetAllocationPropertiesFromHandle"
	if a.closed.Load() {
		return 0, closed(call)
	}
	prop := new(sys.AllocationProp)
	err := a.context.check(call, a.context.table.MemGetAllocationPropertiesFromHandle(prop, a.handle))
	return HandleType(prop.HandleTypes), err
}

// ExportFD makes a descriptor of the allocation, for another process's ImportFD. The caller closes
// it. The allocation must have been made to be shared so.
func (a *Allocation) ExportFD() (*os.File, error) {
	const call = "cuMemExportToShareableHandle"
	if a.closed.Load() {
		return nil, closed(call)
	}
	fd := new(int32)
	r := a.context.table.MemExportToShareableHandle(unsafe.Pointer(fd), a.handle, sys.MemHandleTypePosixFD, 0)
	if err := a.context.check(call, r); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(*fd), "CUDA allocation"), nil
}

// ExportFabric names the allocation to the NVLink domain. See [ShareFabric].
func (a *Allocation) ExportFabric() (FabricHandle, error) {
	const call = "cuMemExportToShareableHandle"
	if a.closed.Load() {
		return FabricHandle{}, closed(call)
	}
	h := new(sys.FabricHandle)
	err := a.context.check(call, a.context.table.MemExportToShareableHandle(unsafe.Pointer(h), a.handle,
		sys.MemHandleTypeFabric, 0))
	return FabricHandle(*h), err
}

// Virtual is a range of addresses with allocations mapped into it, one after the other. It owns the
// range, the mappings and the allocations.
type Virtual struct {
	context     *Context
	pointer     Pointer
	size        int
	allocations []*Allocation
	mapped      int // how many of them
	closed      atomic.Bool
}

// AllocVirtual makes an allocation of at least size bytes and maps it for the devices, or for the
// context's own if none are named.
func (c *Context) AllocVirtual(size int, o AllocationOptions, devices ...*Device) (*Virtual, error) {
	a, err := c.NewAllocation(size, o)
	if err != nil {
		return nil, err
	}
	v, err := c.Map([]*Allocation{a}, devices...)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return v, nil
}

// Map gives allocations addresses, one after the other, which the devices (the context's own if
// none are named) may read and write. On success the allocations belong to the Virtual. On failure
// they stay the caller's, and nothing else is left behind.
func (c *Context) Map(allocations []*Allocation, devices ...*Device) (*Virtual, error) {
	if err := c.use("cuMemMap"); err != nil {
		return nil, err
	}
	v := &Virtual{context: c, allocations: append([]*Allocation(nil), allocations...)}
	for _, a := range allocations {
		if a == nil {
			return nil, missing("cuMemMap", "allocation")
		}
		if a.closed.Load() {
			return nil, closed("cuMemMap")
		}
		v.size += a.size
	}
	if len(devices) == 0 {
		devices = []*Device{c.device}
	}
	if slices.Contains(devices, nil) {
		return nil, missing("cuMemSetAccess", "device")
	}
	if err := v.build(devices); err != nil {
		return nil, errors.Join(err, v.unmap())
	}
	return v, nil
}

// build is the inverse of unmap, as far as it gets.
func (v *Virtual) build(devices []*Device) error {
	c := v.context
	base := new(sys.Pointer)
	if err := c.check("cuMemAddressReserve", c.table.MemAddressReserve(base, uint64(v.size), 0, 0, 0)); err != nil {
		return err
	}
	v.pointer = Pointer(*base)
	at := *base
	for _, a := range v.allocations {
		if err := c.check("cuMemMap", c.table.MemMap(c.handle, at, uint64(a.size), 0, a.handle, 0)); err != nil {
			return err
		}
		v.mapped++
		at += sys.Pointer(a.size)
	}
	access := make([]sys.AccessDesc, len(devices))
	for i, d := range devices {
		access[i] = sys.AccessDesc{
			Location: sys.Location{Type: sys.MemLocationTypeDevice, ID: int32(d.handle)},
			Flags:    sys.MemAccessProtReadWrite,
		}
	}
	return c.check("cuMemSetAccess", c.table.MemSetAccess(c.handle, *base, uint64(v.size), &access[0],
		uint64(len(access))))
}

// unmap takes down the mappings, last first, and then the range. An error does not stop it.
func (v *Virtual) unmap() error {
	c := v.context
	var errs []error
	end := v.pointer
	for _, a := range v.allocations[:v.mapped] {
		end += Pointer(a.size)
	}
	for ; v.mapped > 0; v.mapped-- {
		size := v.allocations[v.mapped-1].size
		end -= Pointer(size)
		errs = append(errs, c.check("cuMemUnmap", c.table.MemUnmap(c.handle, sys.Pointer(end), uint64(size))))
	}
	if v.pointer != 0 {
		errs = append(errs, c.check("cuMemAddressFree", c.table.MemAddressFree(sys.Pointer(v.pointer), uint64(v.size))))
	}
	return errors.Join(errs...)
}

// Close unmaps, frees the addresses and releases the allocations, in this order. No kernel or copy
// of any device may still use them. Further calls do nothing.
func (v *Virtual) Close() error {
	if v.closed.Swap(true) {
		return nil
	}
	errs := []error{v.unmap()}
	for _, a := range v.allocations {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}

// Pointer is where the range begins.
func (v *Virtual) Pointer() Pointer { return v.pointer }

// Size is the range's size in bytes: at least the requested size.
func (v *Virtual) Size() int { return v.size }

// Allocations are the mapped allocations, in order, for export. They belong to the Virtual.
func (v *Virtual) Allocations() []*Allocation { return append([]*Allocation(nil), v.allocations...) }

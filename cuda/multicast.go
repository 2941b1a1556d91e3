package cuda

import (
	"os"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// MulticastGroup is a range of memory that several devices have: a store to an address of it goes to the
// memory of each of them, and a load may add up what all of them hold. The switch between the devices
// does both. Kernels use its addresses with the multimem instructions of PTX alone, on Hopper and later.
//
// It is made in an order: one process makes the group, others import it. Each adds its device, and binds
// memory of it when all have been added: the driver lets a call that comes before wait. Then it maps the
// group as any [Allocation] ([Context.Map]), and its kernels may use it once all devices have bound memory.
type MulticastGroup struct{ *Allocation }

// MulticastGranularity is what the sizes of multicast groups of so many devices, and of the memory that is
// bound to them, are multiples of.
func (d *Driver) MulticastGranularity(devices, size int, o AllocationOptions) (int, error) {
	const call = "cuMulticastGetGranularity"
	least := new(uint64)
	err := d.check(call, d.table.MulticastGetGranularity(least, multicastProp(devices, size, o),
		sys.MulticastGranularityLeast))
	return int(*least), err
}

func multicastProp(devices, size int, o AllocationOptions) *sys.MulticastProp {
	return &sys.MulticastProp{Devices: uint32(devices), Size: uint64(size), HandleTypes: uint64(o.Share)}
}

// NewMulticastGroup makes a group for so many devices. Its size is a multiple of the granularity. It has no
// device yet, not even the context's own.
func (c *Context) NewMulticastGroup(devices, size int, o AllocationOptions) (*MulticastGroup, error) {
	const call = "cuMulticastCreate"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if devices < 1 || size <= 0 {
		return nil, invalid(call, "%d bytes of %d devices", size, devices)
	}
	handle := new(sys.Allocation)
	if err := c.check(call, c.table.MulticastCreate(handle, multicastProp(devices, size, o))); err != nil {
		return nil, err
	}
	return &MulticastGroup{&Allocation{context: c, handle: *handle, size: size}}, nil
}

// ImportMulticastFD takes part in a group of size bytes that another context exported
// ([Allocation.ExportFD]). The descriptor stays the caller's, who may close it at once.
func (c *Context) ImportMulticastFD(fd *os.File, size int) (*MulticastGroup, error) {
	a, err := c.ImportFD(fd, size)
	if err != nil {
		return nil, err
	}
	return &MulticastGroup{a}, nil
}

// Add adds the context's device.
func (g *MulticastGroup) Add() error {
	const call = "cuMulticastAddDevice"
	if g.closed.Load() {
		return closed(call)
	}
	return g.context.check(call, g.context.table.MulticastAddDevice(g.handle, g.context.device.handle))
}

// Bind makes the beginning of an allocation of the context's device that device's part of the whole group.
// The memory stays until Unbind.
func (g *MulticastGroup) Bind(a *Allocation) error {
	const call = "cuMulticastBindMem"
	if a == nil {
		return missing(call, "allocation")
	}
	if g.closed.Load() || a.closed.Load() {
		return closed(call)
	}
	return g.context.check(call, g.context.table.MulticastBindMem(g.context.handle, g.handle, 0, a.handle, 0,
		uint64(g.size), 0))
}

// Unbind takes the memory of the context's device out of the group. No kernel of any device may still use
// the group's addresses.
func (g *MulticastGroup) Unbind() error {
	const call = "cuMulticastUnbind"
	if g.closed.Load() {
		return closed(call)
	}
	return g.context.check(call, g.context.table.MulticastUnbind(g.handle, g.context.device.handle, 0, uint64(g.size)))
}

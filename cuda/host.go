package cuda

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// HostMemory is memory of the host that does not move and that every device can reach.
type HostMemory struct {
	context    *Context
	bytes      []byte
	pointer    Pointer
	registered bool
	closed     atomic.Bool
}

// HostOptions say how host memory is made or registered.
type HostOptions struct {
	// WriteCombined makes the host's writes cheap for the device to read, and the host's reads
	// slow. Of AllocHost.
	WriteCombined bool
	// ReadOnly promises that devices only read, which lets memory be registered that is mapped so.
	// Of RegisterHost; needs [ReadOnlyHostRegister].
	ReadOnly bool
	// IOMemory says that the bytes are a device's registers, not memory. Of RegisterHost.
	IOMemory bool
}

// AllocHost allocates size bytes of pinned memory that is mapped into every device.
func (c *Context) AllocHost(size int, o HostOptions) (*HostMemory, error) {
	const call = "cuMemHostAlloc"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if size <= 0 || o.ReadOnly || o.IOMemory {
		return nil, invalid(call, "%d bytes with %+v", size, o)
	}
	flags := uint32(sys.MemHostAllocPortable | sys.MemHostAllocDeviceMap)
	if o.WriteCombined {
		flags |= sys.MemHostAllocWriteCombined
	}
	p := new(unsafe.Pointer)
	if err := c.check(call, c.table.MemHostAlloc(c.handle, p, uint64(size), flags)); err != nil {
		return nil, err
	}
	return c.mapHost(&HostMemory{context: c, bytes: unsafe.Slice((*byte)(*p), size)})
}

// RegisterHost pins memory that the caller has and maps it into every device. It must come from
// outside Go (a memory file, a mapping), because Go's collector could reuse Go memory. It stays the
// caller's, who frees it after Close.
func (c *Context) RegisterHost(memory []byte, o HostOptions) (*HostMemory, error) {
	const call = "cuMemHostRegister"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if len(memory) == 0 || o.WriteCombined {
		return nil, invalid(call, "%d bytes with %+v", len(memory), o)
	}
	flags := uint32(sys.MemHostRegisterPortable | sys.MemHostRegisterDeviceMap)
	if o.ReadOnly {
		flags |= sys.MemHostRegisterReadOnly
	}
	if o.IOMemory {
		flags |= sys.MemHostRegisterIOMemory
	}
	if err := c.check(call, c.table.MemHostRegister(c.handle, unsafe.Pointer(&memory[0]), uint64(len(memory)),
		flags)); err != nil {
		return nil, err
	}
	return c.mapHost(&HostMemory{context: c, bytes: memory, registered: true})
}

// mapHost learns the device's address of new host memory, or gives the memory back.
func (c *Context) mapHost(m *HostMemory) (*HostMemory, error) {
	p := new(sys.Pointer)
	if err := c.check("cuMemHostGetDevicePointer",
		c.table.MemHostGetDevicePointer(c.handle, p, m.address(), 0)); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.pointer = Pointer(*p)
	return m, nil
}

// Close frees the memory, or unregisters it. No copy or kernel may still use it. Further calls do
// nothing.
func (m *HostMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	c := m.context
	if m.registered {
		return c.check("cuMemHostUnregister", c.table.MemHostUnregister(c.handle, m.address()))
	}
	return c.check("cuMemFreeHost", c.table.MemFreeHost(c.handle, m.address()))
}

// Bytes is the memory as the host sees it. They must not be touched after Close.
func (m *HostMemory) Bytes() []byte { return m.bytes }

// Pointer is where devices find the memory.
func (m *HostMemory) Pointer() Pointer { return m.pointer }

// Size is the memory's size in bytes.
func (m *HostMemory) Size() int { return len(m.bytes) }

func (m *HostMemory) address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.bytes)) }

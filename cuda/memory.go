package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// Pointer is an address in the address space that the host and all devices share. The kind of
// memory decides which processors may access it.
type Pointer uint64

// Add is the address n bytes further.
func (p Pointer) Add(n int) Pointer { return p + Pointer(n) }

func (p Pointer) String() string { return fmt.Sprintf("%#x", uint64(p)) }

// Memory is an allocation in a device's memory. Only the device reaches it, and its peers after
// [Context.EnablePeer].
type Memory struct {
	context *Context
	pointer Pointer
	size    int
	closed  atomic.Bool
}

// Alloc allocates size bytes, aligned to 256. They are not zeroed. It may synchronise the device.
func (c *Context) Alloc(size int) (*Memory, error) {
	const call = "cuMemAlloc"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, invalid(call, "%d bytes", size)
	}
	p := new(sys.Pointer)
	if err := c.check(call, c.table.MemAlloc(c.handle, p, uint64(size))); err != nil {
		return nil, err
	}
	return &Memory{context: c, pointer: Pointer(*p), size: size}, nil
}

// Close frees the memory. It waits for the device. Further calls do nothing.
func (m *Memory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.context.check("cuMemFree", m.context.table.MemFree(m.context.handle, sys.Pointer(m.pointer)))
}

// Pointer is where the memory begins.
func (m *Memory) Pointer() Pointer { return m.pointer }

// Size is the requested size, in bytes.
func (m *Memory) Size() int { return m.size }

// Upload copies src to the device and waits for it. src may be any memory.
//
// The driver's own call returns when it has read memory that is not pinned. The bytes may reach the
// device later than a kernel of a stream that does not wait for the default stream. So this waits
// for the default stream.
func (c *Context) Upload(dst Pointer, src []byte) error {
	const call = "cuMemcpyHtoD"
	if err := c.use(call); err != nil || len(src) == 0 {
		return err
	}
	r := c.asking(func() sys.Result {
		return c.table.MemcpyHtoD(c.handle, sys.Pointer(dst), unsafe.Pointer(&src[0]), uint64(len(src)))
	})
	if err := c.check(call, r); err != nil {
		return err
	}
	return c.check("cuStreamSynchronize", c.asking(func() sys.Result { return c.table.StreamSynchronize(c.handle, 0) }))
}

// Download copies from the device and waits for it. dst may be any memory.
func (c *Context) Download(dst []byte, src Pointer) error {
	const call = "cuMemcpyDtoH"
	if err := c.use(call); err != nil || len(dst) == 0 {
		return err
	}
	return c.check(call, c.asking(func() sys.Result {
		return c.table.MemcpyDtoH(c.handle, unsafe.Pointer(&dst[0]), sys.Pointer(src), uint64(len(dst)))
	}))
}

// Upload enqueues a copy to the device. src must be pinned memory ([HostMemory]) or foreign, and
// stay as it is until the copy is done. Go's own memory belongs to its collector: see
// [Context.Upload].
func (s *Stream) Upload(dst Pointer, src []byte) error {
	const call = "cuMemcpyHtoDAsync"
	if err := s.use(call); err != nil {
		return err
	}
	if len(src) == 0 {
		return nil
	}
	c := s.context
	r := c.table.MemcpyHtoDAsync(c.handle, sys.Pointer(dst), unsafe.Pointer(unsafe.SliceData(src)),
		uint64(len(src)), s.handle)
	return c.check(call, r)
}

// Download enqueues a copy from the device. The rules for [Stream.Upload]'s src hold for dst.
func (s *Stream) Download(dst []byte, src Pointer) error {
	const call = "cuMemcpyDtoHAsync"
	if err := s.use(call); err != nil {
		return err
	}
	if len(dst) == 0 {
		return nil
	}
	c := s.context
	r := c.table.MemcpyDtoHAsync(c.handle, unsafe.Pointer(unsafe.SliceData(dst)), sys.Pointer(src),
		uint64(len(dst)), s.handle)
	return c.check(call, r)
}

// Copy enqueues a copy of size bytes within the device, or to and from memory that it has mapped.
func (s *Stream) Copy(dst, src Pointer, size int) error {
	const call = "cuMemcpyDtoDAsync"
	if err := s.ready(call, size); err != nil || size == 0 {
		return err
	}
	c := s.context
	return c.check(call, c.table.MemcpyDtoDAsync(c.handle, sys.Pointer(dst), sys.Pointer(src), uint64(size), s.handle))
}

// CopyPeer enqueues a copy of size bytes from src in one device's memory to dst in another's. It
// needs no peer access, but is slow without.
func (s *Stream) CopyPeer(dst Pointer, to *Context, src Pointer, from *Context, size int) error {
	const call = "cuMemcpyPeerAsync"
	if err := s.ready(call, size); err != nil || size == 0 {
		return err
	}
	if to == nil || from == nil {
		return missing(call, "context of one side")
	}
	c := s.context
	r := c.table.MemcpyPeerAsync(c.handle, sys.Pointer(dst), to.handle, sys.Pointer(src), from.handle,
		uint64(size), s.handle)
	return c.check(call, r)
}

// Memset enqueues the filling of size bytes with a value.
func (s *Stream) Memset(dst Pointer, value byte, size int) error {
	const call = "cuMemsetD8Async"
	if err := s.ready(call, size); err != nil || size == 0 {
		return err
	}
	c := s.context
	return c.check(call, c.table.MemsetD8Async(c.handle, sys.Pointer(dst), value, uint64(size), s.handle))
}

// Memset32 enqueues the filling of count 32-bit words with a value. dst must be aligned to 4.
func (s *Stream) Memset32(dst Pointer, value uint32, count int) error {
	const call = "cuMemsetD32Async"
	if err := s.ready(call, count); err != nil || count == 0 {
		return err
	}
	c := s.context
	return c.check(call, c.table.MemsetD32Async(c.handle, sys.Pointer(dst), value, uint64(count), s.handle))
}

// ready refuses a stream that cannot be used and a negative size, which the driver would take for a
// huge one.
func (s *Stream) ready(call string, size int) error {
	if err := s.use(call); err != nil {
		return err
	}
	if size < 0 {
		return invalid(call, "a size of %d", size)
	}
	return nil
}

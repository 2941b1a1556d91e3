package cuda

import (
	"sync/atomic"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// IPCHandle names an allocation of [Context.Alloc]'s kind to the other processes of the host. It is
// the way to share for memory that is not virtual, as most of PyTorch's. It names the whole
// allocation: the offset of a part must travel beside it.
type IPCHandle [64]byte

// IPCHandle names the allocation that holds p. It fails for virtual memory: see
// [Context.RetainAllocation].
func (c *Context) IPCHandle(p Pointer) (IPCHandle, error) {
	const call = "cuIpcGetMemHandle"
	if err := c.use(call); err != nil {
		return IPCHandle{}, err
	}
	h := new(sys.IpcHandle)
	err := c.check(call, c.table.IpcGetMemHandle(c.handle, h, sys.Pointer(p)))
	return IPCHandle(*h), err
}

// IPCMemory is another process's allocation, mapped here.
type IPCMemory struct {
	context *Context
	pointer Pointer
	closed  atomic.Bool
}

// OpenIPC maps an allocation of another process, and gives the context access to its device if it
// has none. A process cannot open its own handles, and opens each of another's once for each
// device.
func (c *Context) OpenIPC(h IPCHandle) (*IPCMemory, error) {
	const call = "cuIpcOpenMemHandle"
	if err := c.use(call); err != nil {
		return nil, err
	}
	p := new(sys.Pointer)
	r := c.table.IpcOpenMemHandle(c.handle, p, sys.IpcHandle(h), sys.IpcLazyEnablePeerAccess)
	if err := c.check(call, r); err != nil {
		return nil, err
	}
	return &IPCMemory{context: c, pointer: Pointer(*p)}, nil
}

// Close unmaps the memory, which must happen before its owner frees it. Further calls do nothing.
func (m *IPCMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.context.check("cuIpcCloseMemHandle",
		m.context.table.IpcCloseMemHandle(m.context.handle, sys.Pointer(m.pointer)))
}

// Pointer is where the allocation begins.
func (m *IPCMemory) Pointer() Pointer { return m.pointer }

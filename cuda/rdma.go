package cuda

import (
	"errors"
	"os"
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// ExportDMABuf makes a dma-buf of size bytes of this device's memory, by which network adapters register them
// ([DMABuf]). A dma-buf has whole pages of the host: the bytes begin at offset in it. The caller closes the file, and
// may do so once the adapter has the memory.
func (c *Context) ExportDMABuf(p Pointer, size int) (file *os.File, offset int, err error) {
	const call = "cuMemGetHandleForAddressRange"
	if err := c.use(call); err != nil {
		return nil, 0, err
	}
	if size <= 0 {
		return nil, 0, invalid(call, "%d bytes", size)
	}
	page := Pointer(os.Getpagesize())
	from, to := p/page*page, (p+Pointer(size)+page-1)/page*page
	fd := new(int32)
	r := c.table.MemGetHandleForAddressRange(c.handle, unsafe.Pointer(fd), sys.Pointer(from), uint64(to-from),
		sys.MemRangeHandleDMABuf, 0)
	if err := c.check(call, r); err != nil {
		return nil, 0, err
	}
	if *fd < 0 {
		return nil, 0, errors.New(call + ": it gave no descriptor")
	}
	return os.NewFile(uintptr(*fd), "dma-buf"), int(p - from), nil
}

// FlushRDMA lets this device's work that is enqueued from now on see what network adapters have written into its
// memory and reported as complete. Where the device orders such writes itself it does nothing.
func (c *Context) FlushRDMA() error {
	const call = "cuFlushGPUDirectRDMAWrites"
	if err := c.use(call); err != nil {
		return err
	}
	ordered, err := c.device.Attribute(GPUDirectRDMAOrdering)
	if err == nil && ordered >= sys.WritesOrderedOwner {
		return nil
	}
	return c.check(call, c.table.FlushGPUDirectRDMAWrites(c.handle, sys.FlushTargetContext, sys.FlushToOwner))
}

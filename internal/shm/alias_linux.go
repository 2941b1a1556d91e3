package shm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Alias is one more mapping of a Region's memory. It is for a library that may go on writing when it was told to stop:
// the mapping is taken away under it, and the memory stays what it is.
type Alias struct {
	mapping unsafe.Pointer
	length  int
	size    int
}

// Alias makes one. The Region must have its memory file: see [Region.FD].
func (r *Region) Alias() (*Alias, error) {
	a := &Alias{length: len(r.mapping), size: r.size}
	var err error
	a.mapping, err = unix.MmapPtr(r.fd, 0, nil, uintptr(a.length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if r.populate { // the pages are there already
		_ = unix.Madvise(unsafe.Slice((*byte)(a.mapping), a.length), unix.MADV_POPULATE_WRITE)
	}
	return a, nil
}

// Bytes is the memory.
func (a *Alias) Bytes() []byte { return unsafe.Slice((*byte)(a.mapping), a.size) }

// Retire puts memory in the mapping's place that nobody reads, and that takes up none where nothing is written.
func (a *Alias) Retire() error {
	_, err := unix.MmapPtr(-1, 0, a.mapping, uintptr(a.length), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}

// Close takes the mapping away. Nothing may use it any more.
func (a *Alias) Close() error {
	return os.NewSyscallError("munmap", unix.MunmapPtr(a.mapping, uintptr(a.length)))
}

package cudatest

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const supported = true

// A file is physical memory: a memory file.
type file struct {
	fd      int
	size    int
	device  int // that it is on
	types   int32
	counted *primary // whose memory it takes; nil for what was imported
}

func newFile(size, device int) (*file, error) {
	fd, err := unix.MemfdCreate("cudatest", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &file{fd: fd, size: size, device: device}, nil
}

// duplicate takes part in a file that another process made.
func duplicate(fd int, device int) (*file, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &file{fd: own, size: int(st.Size), device: device}, nil
}

// openOf opens a file that another process, or this one, has under a descriptor.
func openOf(pid, fd, device int) (*file, error) {
	own, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(own)
	return duplicate(own, device)
}

func (f *file) descriptor() (int, error) {
	return unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (f *file) close() { unix.Close(f.fd) }

// mapAnywhere maps the whole file.
func (f *file) mapAnywhere() (uintptr, error) {
	p, err := unix.MmapPtr(f.fd, 0, nil, uintptr(f.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return uintptr(p), err
}

// mapAt maps the whole file into a reserved range. It must not be touched yet.
func (f *file) mapAt(at uintptr) error {
	_, err := unix.MmapPtr(f.fd, 0, address(at), uintptr(f.size), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// allow lets memory be touched.
func allow(at uintptr, size int) error {
	return unix.Mprotect(view(at, size), unix.PROT_READ|unix.PROT_WRITE)
}

// reserve takes addresses with nothing behind them.
func reserve(size int) (uintptr, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	return uintptr(p), err
}

// vacate leaves a part of a reserved range with nothing behind it.
func vacate(at uintptr, size int) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED
	_, err := unix.MmapPtr(-1, 0, address(at), uintptr(size), unix.PROT_NONE, flags)
	return err
}

// unmap gives addresses back.
func unmap(at uintptr, size int) error { return unix.MunmapPtr(address(at), uintptr(size)) }

func thread() int { return unix.Gettid() }

func process() int { return unix.Getpid() }

func address(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// hugePage is the only huge page size in use; every architecture with 4 KiB pages has it.
const hugePage = 2 << 20

// seals keep the file's size: no process can cut a mapping of it short. The last one keeps the
// seals.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Region is memory backed by a sealed memory file and mapped, shared, into this process.
//
// A Region starts with one reference. It is safe for concurrent use; its bytes are as safe as their
// users make them.
type Region struct {
	fd       int // -1 for a peer's region: its mapping outlives the descriptor
	mapping  []byte
	size     int
	huge     bool
	populate bool
	refs     atomic.Int64
}

// Create makes a region of at least size bytes, zeroed. Its size is size rounded up to the kind of
// page it got, so it may differ between ranks that got different kinds. The name only shows in
// /proc/self/maps; it lives in no file system.
func Create(name string, size int, o Options) (*Region, error) {
	if size <= 0 {
		return nil, fmt.Errorf("create region %q: size %d", name, size)
	}
	if o.Huge == HugeRequire || (o.Huge == HugeAuto && size >= hugePage) {
		r, err := allocate(name, size, hugePage, true)
		if err == nil {
			return r, nil
		}
		if o.Huge == HugeRequire {
			return nil, fmt.Errorf("create region %q of %d bytes: %w: %w", name, size, ErrNoHugePages, err)
		}
	}
	r, err := allocate(name, size, os.Getpagesize(), o.Populate)
	if err != nil {
		return nil, fmt.Errorf("create region %q of %d bytes: %w", name, size, err)
	}
	return r, nil
}

func allocate(name string, size, page int, populate bool) (*Region, error) {
	huge := page == hugePage
	size, ok := roundUp(size, page)
	if !ok {
		return nil, unix.ENOMEM
	}
	fd, err := openMemfd(name, huge)
	if err != nil {
		return nil, err
	}
	r := &Region{fd: fd, size: size, huge: huge, populate: populate}
	r.refs.Store(1)
	if err := r.fill(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return r, nil
}

// fill gives a new file its size, its seals and its mapping.
func (r *Region) fill() error {
	if err := unix.Ftruncate(r.fd, int64(r.size)); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_ADD_SEALS, seals); err != nil {
		return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	return r.mapIn(r.size)
}

// openMemfd asks for a file that can't be executed where the kernel knows the flag (6.3): some
// systems refuse any other.
func openMemfd(name string, huge bool) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// FromFD maps the first size bytes of an existing memory file. It owns fd from the call on, and
// closes it even when it fails. It refuses, by name, a descriptor that is not a memfd
// ([ErrNotMemfd]), can still shrink ([ErrNotSealed]) or holds fewer than size bytes
// ([ErrTooSmall]).
func FromFD(fd int, size int) (*Region, error) { return fromFD(fd, size, false) }

func fromFD(fd, size int, populate bool) (*Region, error) {
	r, err := adopt(fd, size, populate)
	if err != nil {
		err = fmt.Errorf("region of descriptor %d: %w", fd, err)
		if fd >= 0 {
			err = errors.Join(err, os.NewSyscallError("close", ignoreBadFD(unix.Close(fd))))
		}
		return nil, err
	}
	return r, nil
}

// ignoreBadFD: that a descriptor is not open has been said by the time it is closed.
func ignoreBadFD(err error) error {
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}

func adopt(fd, size int, populate bool) (*Region, error) {
	if size <= 0 {
		return nil, fmt.Errorf("size %d", size)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s: %w", fdName(fd), ErrNotMemfd)
	}
	if have&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%s: %w", fdName(fd), ErrNotSealed)
	}
	if st.Size < int64(size) {
		return nil, fmt.Errorf("%s holds %d bytes, want %d: %w", fdName(fd), st.Size, size, ErrTooSmall)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, os.NewSyscallError("fstatfs", err)
	}
	r := &Region{fd: fd, size: size, huge: uint32(fs.Type) == unix.HUGETLBFS_MAGIC}
	page := os.Getpagesize()
	if r.huge {
		page = int(fs.Bsize)
	}
	length, ok := roundUp(size, page)
	if !ok {
		return nil, unix.ENOMEM
	}
	r.populate = populate || r.huge
	r.refs.Store(1)
	if err := r.mapIn(length); err != nil {
		return nil, err
	}
	return r, nil
}

// fdName describes the descriptor's file, for messages.
func fdName(fd int) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "file"
	}
	return name
}

// mapIn maps length bytes, a multiple of the page size. An empty pool of huge pages is noticed
// here, and not before.
func (r *Region) mapIn(length int) error {
	mapping, err := unix.Mmap(r.fd, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if r.populate {
		if err := populate(r.fd, mapping); err != nil {
			return errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mapping)))
		}
	}
	r.mapping = mapping
	return nil
}

// populate makes every page present, or says why it can't be; a touch would answer with a signal
// instead.
func populate(fd int, mapping []byte) error {
	err := unix.Madvise(mapping, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14: allocate the pages and leave the faults, which then can't fail
		return os.NewSyscallError("fallocate", unix.Fallocate(fd, 0, 0, int64(len(mapping))))
	}
	return os.NewSyscallError("madvise(MADV_POPULATE_WRITE)", err)
}

func roundUp(n, page int) (int, bool) {
	r := (n + page - 1) &^ (page - 1)
	return r, r >= n
}

// Bytes is the memory: Size bytes, valid until the last Release.
func (r *Region) Bytes() []byte { return r.mapping[:r.size:r.size] }

// FD is the memory file, borrowed: it is closed by the last Release. It is -1 for a region that
// came from a peer's process, whose descriptor is closed as soon as it is mapped.
func (r *Region) FD() int { return r.fd }

// Size is the length of Bytes.
func (r *Region) Size() int { return r.size }

// HugePages reports whether the memory comes from a pool of huge pages.
func (r *Region) HugePages() bool { return r.huge }

// Retain adds a reference, which its owner gives back by Release. Only the holder of a reference
// may call it.
func (r *Region) Retain() {
	if r.refs.Add(1) <= 1 {
		panic("shm: Retain of a released Region")
	}
}

// Release gives a reference back; the last one unmaps the memory and closes the descriptor. One too
// many is [ErrReleased].
func (r *Region) Release() error {
	switch n := r.refs.Add(-1); {
	case n > 0:
		return nil
	case n < 0:
		r.refs.Add(1)
		return ErrReleased
	}
	err := os.NewSyscallError("munmap", unix.Munmap(r.mapping))
	r.mapping = nil
	return errors.Join(err, r.closeFD())
}

func (r *Region) closeFD() error {
	if r.fd < 0 {
		return nil
	}
	fd := r.fd
	r.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// openFDs lists this process's descriptors and what they are, without the one that lists them.
func openFDs(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var fds []string
	for _, e := range entries {
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(name, "/proc/") {
			continue
		}
		fds = append(fds, e.Name()+" "+name)
	}
	return fds
}

// checkFDs fails the test if it ends with more or fewer descriptors than it starts with.
func checkFDs(t testing.TB) {
	t.Helper()
	if r, w, err := os.Pipe(); err == nil { // the first makes the runtime open its own
		r.Close()
		w.Close()
	}
	before := openFDs(t)
	t.Cleanup(func() {
		if after := openFDs(t); len(after) != len(before) {
			t.Errorf("%d descriptors before, %d after:\n%s", len(before), len(after), strings.Join(after, "\n"))
		}
	})
}

func create(t testing.TB, size int, o Options) *Region {
	t.Helper()
	r, err := Create("test", size, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func release(t testing.TB, rs ...*Region) {
	t.Helper()
	for _, r := range rs {
		if err := r.Release(); err != nil {
			t.Error(err)
		}
	}
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRegionSizes(t *testing.T) {
	checkFDs(t)
	page := os.Getpagesize()
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 3<<20).Draw(rt, "size")
		r := create(t, size, Options{Huge: HugeOff, Populate: rapid.Bool().Draw(rt, "populate")})
		defer release(t, r)
		if want := (size + page - 1) / page * page; r.Size() != want || len(r.Bytes()) != want ||
			cap(r.Bytes()) != want || r.HugePages() {
			rt.Fatalf("size %d, %d bytes, huge %v; want %d", r.Size(), len(r.Bytes()), r.HugePages(), want)
		}
		if b := r.Bytes(); b[0] != 0 || b[len(b)-1] != 0 {
			rt.Fatal("not zeroed")
		}
		r.Bytes()[size-1] = 1
		same, err := FromFD(dup(t, r.FD()), size)
		if err != nil {
			rt.Fatal(err)
		}
		defer release(t, same)
		if same.Size() != size || same.Bytes()[size-1] != 1 {
			rt.Fatal("a second mapping shows other memory")
		}
	})
}

func TestCreateRefusesSizes(t *testing.T) {
	for _, size := range []int{0, -1, int(^uint(0) >> 1)} {
		if r, err := Create("test", size, Options{}); err == nil {
			t.Errorf("created %d bytes", r.Size())
		}
	}
}

func TestRegionCannotChangeSize(t *testing.T) {
	r := create(t, 8192, Options{})
	defer release(t, r)
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(r.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(r.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("further seal: %v", err)
	}
	flags, err := unix.FcntlInt(uintptr(r.FD()), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v: survives exec", flags, err)
	}
}

func TestRegionReferences(t *testing.T) {
	checkFDs(t)
	r := create(t, 4096, Options{})
	var all sync.WaitGroup
	for range 8 {
		r.Retain()
		all.Go(func() {
			for range 1000 {
				r.Retain()
				r.Bytes()[0] |= 0
				if err := r.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for range 8 {
		release(t, r)
	}
	if r.FD() < 0 {
		t.Fatal("closed while referenced")
	}
	release(t, r)
	if err := r.Release(); !errors.Is(err, ErrReleased) {
		t.Errorf("one release too many: %v", err)
	}
	if r.FD() != -1 {
		t.Error("still has a descriptor")
	}
	defer func() {
		if recover() == nil {
			t.Error("Retain of a released region went through")
		}
	}()
	r.Retain()
}

func TestFromFDRefuses(t *testing.T) {
	checkFDs(t)
	memfd := func(size int64, seal int) int {
		fd, err := unix.MemfdCreate("theirs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	for _, c := range []struct {
		what string
		fd   int
		size int
		want error
		name string
	}{
		{"file", file, 4096, ErrNotMemfd, path},
		{"pipe", pipe[0], 4096, ErrNotMemfd, "pipe:"},
		{"unsealed", memfd(4096, 0), 4096, ErrNotSealed, "/memfd:theirs"},
		{"sealed against growing only", memfd(4096, unix.F_SEAL_GROW), 4096, ErrNotSealed, "/memfd:theirs"},
		{"small", memfd(4095, unix.F_SEAL_SHRINK), 4096, ErrTooSmall, "4095"},
		{"empty", memfd(0, unix.F_SEAL_SHRINK), 1, ErrTooSmall, "/memfd:theirs"},
		{"no size", memfd(4096, unix.F_SEAL_SHRINK), 0, nil, "size 0"},
		{"read-only", memfd(4096, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE), 4096, unix.EPERM, "mmap"},
		{"not open", 1 << 20, 4096, unix.EBADF, "fstat"},
		{"negative", -1, 4096, unix.EBADF, "descriptor -1"},
	} {
		r, err := FromFD(c.fd, c.size)
		if err == nil {
			t.Errorf("%s: took it", c.what)
			release(t, r)
			continue
		}
		if (c.want != nil && !errors.Is(err, c.want)) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: %v; want %v naming %s", c.what, err, c.want, c.name)
		}
	}
	fd := memfd(5000, unix.F_SEAL_SHRINK)
	r, err := FromFD(fd, 4500)
	if err != nil {
		t.Fatal(err)
	}
	if r.FD() != fd || r.Size() != 4500 || len(r.Bytes()) != 4500 {
		t.Errorf("fd %d, size %d", r.FD(), r.Size())
	}
	release(t, r)
}

// hugePagesMap reports whether the pool has a page for us, by asking the kernel directly.
func hugePagesMap() bool {
	b, err := unix.Mmap(-1, 0, hugePage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|21<<26)
	if err != nil {
		return false
	}
	defer unix.Munmap(b)
	return unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil
}

func TestHugePages(t *testing.T) {
	checkFDs(t)
	have := hugePagesMap()
	t.Logf("huge pages: %v; %s", have, HugeStatus())
	if strings.Contains(HugeStatus(), "\n") || strings.HasPrefix(HugeStatus(), "2 MiB pages") != have {
		t.Errorf("status %q with huge pages %v", HugeStatus(), have)
	}
	small := create(t, hugePage-1, Options{})
	if small.HugePages() {
		t.Error("a region under 2 MiB took a huge page")
	}
	release(t, small)

	r := create(t, hugePage, Options{})
	if r.HugePages() != have || r.Size() != hugePage {
		t.Errorf("huge %v, size %d", r.HugePages(), r.Size())
	}
	r.Bytes()[0], r.Bytes()[hugePage-1] = 1, 2
	same, err := FromFD(dup(t, r.FD()), 1+hugePage/2)
	if err != nil {
		t.Fatal(err)
	}
	if same.HugePages() != have || same.Size() != 1+hugePage/2 || same.Bytes()[0] != 1 {
		t.Errorf("mapped again: huge %v, size %d", same.HugePages(), same.Size())
	}
	release(t, r, same)

	r, err = Create("test", 1, Options{Huge: HugeRequire})
	switch {
	case have && (err != nil || !r.HugePages() || r.Size() != hugePage):
		t.Errorf("required: %v", err)
	case !have && !errors.Is(err, ErrNoHugePages):
		t.Errorf("required and not there: %v", err)
	}
	if err == nil {
		release(t, r)
	}
}

// residentBytes is how much of the region this process has mapped pages for.
func residentBytes(t *testing.T, r *Region) int {
	t.Helper()
	vec := make([]byte, (len(r.Bytes())+os.Getpagesize()-1)/os.Getpagesize())
	if err := mincore(r.Bytes(), vec); err != nil {
		t.Fatal(err)
	}
	return bytes.Count(vec, []byte{1}) * os.Getpagesize()
}

func TestPopulate(t *testing.T) {
	for _, populate := range []bool{false, true} {
		r := create(t, 1<<20, Options{Huge: HugeOff, Populate: populate})
		want := 0
		if populate {
			want = 1 << 20
		}
		if got := residentBytes(t, r); got != want {
			t.Errorf("populate %v: %d bytes are there", populate, got)
		}
		release(t, r)
	}
}

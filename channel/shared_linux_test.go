package channel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft/internal/shm"
)

// twice returns shared memory, zeroed, mapped at two addresses, as two processes see it.
func twice(t testing.TB, size int) (a, b []byte) {
	t.Helper()
	one, err := shm.Create("channel-test", size, shm.Options{Huge: shm.HugeOff})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(one.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	two, err := shm.FromFD(fd, one.Size())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range []*shm.Region{one, two} {
			if err := r.Release(); err != nil {
				t.Error(err)
			}
		}
	})
	return one.Bytes()[:size], two.Bytes()[:size]
}

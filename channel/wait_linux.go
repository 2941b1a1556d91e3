package channel

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
)

// word32 is the half of the counter that changes with every publication. The futex is shared (not
// private): waiters of other processes map the same page at other addresses.
func word32(v *atomic.Uint64) unsafe.Pointer {
	p := unsafe.Pointer(v)
	if bigEndian {
		p = unsafe.Add(p, 4)
	}
	return p
}

var bigEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 0
}()

func wake(v *atomic.Uint64) {
	// Waking never blocks, so the raw form is right: it need not inform the scheduler.
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(word32(v)), futexWake, 1<<30, 0, 0, 0)
}

func sleep(v *atomic.Uint64, seen uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	// Sleeping must go through the form that hands the processor back to the scheduler: a raw one
	// would hold up the garbage collector for as long as it lasts.
	syscall.Syscall6(unix.SYS_FUTEX, uintptr(word32(v)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

func yieldThread() { syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

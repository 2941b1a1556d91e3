package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore sets a byte of vec for each page of b that is in memory.
func mincore(b, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

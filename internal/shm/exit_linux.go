package shm

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exitState is how much is known of the exit of a process.
type exitState uint8

const (
	exitNowhere exitState = iota // there is no descriptor of the process
	exitUnknown                  // the kernel does not say, and will not
	exitRunning                  // the process has not ended
	exitPending                  // its parent has not yet waited for it: until then only the parent can know
	exitKnown
)

// pidfdInfo is struct pidfd_info of linux/pidfd.h as Linux 6.15 has it. Later ones append to it, and take a
// size from the request.
type pidfdInfo struct {
	mask     uint64
	_        uint64 // cgroupid
	_        [3]uint32
	_        [8]uint32 // user and group ids
	exitCode int32
}

const (
	pidfdInfoExit = 1 << 3 // PIDFD_INFO_EXIT, of Linux 6.15: also of processes that are no children of this one

	// pidfdGetInfo is PIDFD_GET_INFO: _IOWR(0xff, 11, struct pidfd_info).
	pidfdGetInfo = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xff<<8 | 11
)

// exitOf asks the kernel how the process of a descriptor ended. A kernel
// before 6.15 says nothing of the exit, or refuses the request.
func exitOf(fd int) (unix.WaitStatus, exitState) {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(ready, 0); err != nil || n == 0 {
		return 0, exitRunning
	}
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	switch {
	case e == 0 && info.mask&pidfdInfoExit != 0:
		return unix.WaitStatus(info.exitCode), exitKnown
	case e == 0:
		return 0, exitPending
	}
	return 0, exitUnknown
}

// Exit says whether the process of a peer that died is known to have ended, and how in words: "exit status 7".
// It waits for that as long as patience, since the launcher has to take notice first. The words are "" where the
// kernel does not tell, which Linux does from 6.15 on.
func (m *Mesh) Exit(peer int, patience time.Duration) (how string, ended bool) {
	const interval = 2 * time.Millisecond
	for begun := time.Now(); ; time.Sleep(interval) {
		status, state := m.watch.exit(peer)
		switch {
		case state == exitKnown && status.Signaled():
			return fmt.Sprintf("killed by signal %d (%s)", int(status.Signal()), unix.SignalName(status.Signal())), true
		case state == exitKnown:
			return fmt.Sprintf("exit status %d", status.ExitStatus()), true
		case state == exitUnknown, state == exitNowhere, time.Since(begun) >= patience:
			return "", state == exitUnknown || state == exitPending
		}
	}
}

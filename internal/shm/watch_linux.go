package shm

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watch waits for processes to end. A process's end usually shows first on its sockets, but not
// where a child that it forked still holds them open. All pidfds sit in one epoll set, and that in
// the runtime's, so a mesh costs one goroutine and no thread.
type watch struct {
	set  *os.File
	mu   sync.Mutex
	fds  map[int]int // by peer; nil once closed
	gone map[int]int // of peers that are watched no longer, whose exit status may be asked for
}

func newWatch() (*watch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return &watch{set: os.NewFile(uintptr(fd), "pidfds"), fds: make(map[int]int), gone: make(map[int]int)}, nil
}

// add watches a peer's process. It returns ErrDied if there is no such process any more. Where the
// kernel has no pidfds or this process may not have them, it does nothing: only the socket then
// shows the end.
func (w *watch) add(peer, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrDied
	}
	if err != nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err = os.ErrClosed
	if w.fds != nil {
		err = w.control(unix.EPOLL_CTL_ADD, fd, peer)
	}
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.fds[peer] = fd
	return nil
}

func (w *watch) control(op, fd, peer int) error {
	raw, err := w.set.SyscallConn()
	if err != nil {
		return err
	}
	var ctl error
	err = raw.Control(func(set uintptr) {
		ctl = unix.EpollCtl(int(set), op, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(peer)})
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("epoll_ctl", ctl)
}

// remove stops watching a peer, and reports whether the watch is still open. The descriptor is kept for
// exit.
func (w *watch) remove(peer int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if fd, ok := w.fds[peer]; ok {
		delete(w.fds, peer)
		_ = w.control(unix.EPOLL_CTL_DEL, fd, peer)
		w.gone[peer] = fd
	}
	return w.fds != nil
}

// exit is what is known of the exit of a peer that is watched no longer.
func (w *watch) exit(peer int) (status unix.WaitStatus, state exitState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fd, ok := w.gone[peer]
	if !ok {
		return 0, exitNowhere
	}
	return exitOf(fd)
}

// run calls ended for each peer whose process ends, until close.
func (w *watch) run(ended func(peer int)) {
	raw, err := w.set.SyscallConn()
	if err != nil {
		return
	}
	var events [16]unix.EpollEvent
	// The runtime wakes this reader on a change from "none ended" to "some ended", so each turn
	// empties the set.
	_ = raw.Read(func(set uintptr) bool {
		for {
			n, err := unix.EpollWait(int(set), events[:], 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return true
			}
			if n == 0 {
				return false
			}
			for _, e := range events[:n] {
				if !w.remove(int(e.Fd)) {
					return true
				}
				ended(int(e.Fd))
			}
		}
	})
}

// close ends run.
func (w *watch) close() {
	w.mu.Lock()
	fds, gone := w.fds, w.gone
	w.fds, w.gone = nil, nil
	w.mu.Unlock()
	_ = w.set.Close() // waits for run, which may be about to take mu
	for _, open := range []map[int]int{fds, gone} {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}
}

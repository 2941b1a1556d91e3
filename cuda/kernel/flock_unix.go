//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package kernel

import (
	"errors"
	"os"
	"syscall"
)

// flock takes a file's lock if it is free. The lock belongs to the open file, so it also keeps the
// caches of one process apart.
func flock(f *os.File) (taken bool, err error) {
	err = operate(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// funlock gives the lock back even if the descriptor has gone on to a child that C code forked.
func funlock(f *os.File) { _ = operate(f, syscall.LOCK_UN) }

func operate(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

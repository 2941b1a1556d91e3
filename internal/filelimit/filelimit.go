// Package filelimit is about how many files this process may have open: the limit that "ulimit -n"
// sets.
package filelimit

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Go's runtime opens two files for its poller when the first timer starts, and ends the process if
// it can't. It has them from here on, so that a limit that is reached later is an error.
func init() { time.AfterFunc(time.Hour, func() {}).Stop() }

// Reached reports whether err is, at its root, that this process has as many files open as it may.
func Reached(err error) bool { return errors.Is(err, syscall.EMFILE) }

// Error is such an error in one sentence: the owner of the limit, its value, and the way out. Which
// of this process's calls met it says nothing.
func Error() error { return limitError(Get()) }

type limitError int

func (e limitError) Error() string {
	return fmt.Sprintf("this process has reached its limit of %d open files: raise it (ulimit -n)", int(e))
}

func (limitError) Unwrap() error { return syscall.EMFILE }

// Package filelimit is about how many files this process may have open: the limit that "ulimit -n" sets.
package filelimit

import (
	"errors"
	"fmt"
	"syscall"
)

// Reached reports whether err is, at its root, that this process has as many files open as it may.
func Reached(err error) bool { return errors.Is(err, syscall.EMFILE) }

// Explain adds to such an error what the limit is and the way out. Other errors, and nil, it returns as they are.
func Explain(err error) error {
	if err == nil || !Reached(err) || errors.As(err, new(*explained)) {
		return err
	}
	return &explained{err}
}

// explained is an error that Explain has added to.
type explained struct{ error }

func (e *explained) Error() string {
	return fmt.Sprintf("%v: this process has reached its limit of %d open files: raise it (ulimit -n)", e.error, Get())
}

func (e *explained) Unwrap() error { return e.error }

//go:build linux || darwin

package filelimit

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Get is how many files this process may have open.
func Get() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return math.MaxInt // the system will speak up in time
	}
	return int(min(l.Cur, math.MaxInt))
}

// Raise makes room for need open files.
func Raise(need int) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur >= uint64(need) {
		return nil
	}
	if l.Max < uint64(need) {
		return fmt.Errorf("%d open files are needed and %d allowed: raise the limit (ulimit -n)", need, l.Max)
	}
	l.Cur = uint64(need)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", need, err)
	}
	return nil
}

//go:build linux || darwin

package bootstrap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// raiseFileLimit makes room for need open files, of which rank 0 uses one for each rank.
func raiseFileLimit(need int) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur >= uint64(need) {
		return nil // if the limit can't be read, the system will speak up in time
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

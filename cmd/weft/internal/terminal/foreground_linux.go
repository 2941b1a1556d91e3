package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// Foreground reports whether the processes of this one's group are those to which a terminal sends Ctrl-C.
func Foreground() bool {
	f, err := os.Open("/dev/tty") // of this session, if it has one
	if err != nil {
		return false
	}
	defer f.Close()
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

//go:build unix

package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// trusted says whether only this user or root can have written a file.
func trusted(info fs.FileInfo) error {
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner is unknown")
	}
	return trustedAs(uint32(os.Geteuid()), status.Uid, info.Mode())
}

func trustedAs(user, owner uint32, mode fs.FileMode) error {
	if owner != user && owner != 0 {
		return fmt.Errorf("it belongs to user %d, neither to this one (%d) nor to root", owner, user)
	}
	if mode.Perm()&0o022 != 0 {
		return fmt.Errorf("others than its owner can write it (mode %04o): chmod go-w helps", mode.Perm())
	}
	return nil
}

//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package kernel

import (
	"errors"
	"os"
)

func flock(*os.File) (taken bool, err error) { return false, errors.ErrUnsupported }

func funlock(*os.File) {}

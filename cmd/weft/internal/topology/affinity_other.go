//go:build !linux

package topology

import "errors"

// ErrNeedsLinux is returned where the operating system has no affinity calls.
var ErrNeedsLinux = errors.New("cpu affinity needs Linux")

// Allowed needs Linux.
func Allowed() ([]int, error) { return nil, ErrNeedsLinux }

// Pin needs Linux.
func Pin([]int) error { return ErrNeedsLinux }

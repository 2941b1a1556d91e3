//go:build !race

package channel

import "unsafe"

func release(unsafe.Pointer) {}
func acquire(unsafe.Pointer) {}

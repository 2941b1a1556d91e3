package service_test

import "unsafe"

// bytesAt is memory at an address.
func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

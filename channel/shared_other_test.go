//go:build !linux

package channel

import "testing"

// twice returns memory that two ranks use. Only goroutines can be ranks here, and they see the same
// address.
func twice(_ testing.TB, size int) (a, b []byte) {
	a = make([]byte, size)
	return a, a
}

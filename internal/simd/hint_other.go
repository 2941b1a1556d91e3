//go:build !amd64 && !arm64

package simd

// Pause tells the processor that the caller is spinning. Here there is no such hint.
func Pause() {}

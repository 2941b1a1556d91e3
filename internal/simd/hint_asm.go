//go:build amd64 || arm64

package simd

// Pause tells the processor that the caller is spinning: PAUSE on amd64, YIELD on arm64.
func Pause()

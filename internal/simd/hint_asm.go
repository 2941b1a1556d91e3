//go:build amd64 || arm64

package simd

// Pause is the processor's hint for spinning: PAUSE on amd64, YIELD on arm64.
func Pause()

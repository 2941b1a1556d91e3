//go:build !amd64 && !arm64

package simd

// Pause tells the processor that the caller is spinning. Here there is no such hint.
// It must stay a call: see channel.pause.
//
//go:noinline
func Pause() {}

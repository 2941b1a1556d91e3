//go:build !amd64 && !arm64

package simd

// Pause is the processor's hint for spinning. Here there is no such hint. It must stay a call: see
// channel.pause.
//
//go:noinline
func Pause() {}

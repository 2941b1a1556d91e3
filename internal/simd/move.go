package simd

import "unsafe"

// Copy copies n bytes from src to dst, which must not overlap. With stream the part of dst that
// covers whole cache lines is written with non-temporal stores: the data goes to memory without
// displacing the caches, and the caller issues StoreFence before it publishes a flag that announces
// the data.
func Copy(dst, src unsafe.Pointer, n int, stream bool) {
	if n > 0 {
		copyRow(dst, src, n, stream)
	}
}

// FanOut copies the n bytes at src to every destination, reading src once. No destination may
// overlap src or another. stream is as in Copy.
func FanOut(dst []unsafe.Pointer, src unsafe.Pointer, n int, stream bool) {
	if n > 0 && len(dst) > 0 {
		fanOut(dst, src, n, stream)
	}
}

// Zero sets n bytes at dst to zero. stream is as in Copy.
func Zero(dst unsafe.Pointer, n int, stream bool) {
	if n > 0 {
		zeroRow(dst, n, stream)
	}
}

func copyPortable(dst, src unsafe.Pointer, n int) {
	copy(view[byte](dst, 0, n), view[byte](src, 0, n))
}

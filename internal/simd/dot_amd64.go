package simd

import "unsafe"

func dot(t Type, a, b unsafe.Pointer, n int) float32 {
	if active == portable {
		return dotPortable(t, a, b, n)
	}
	// The last, incomplete block is completed with -0 times +0, whose sum with any accumulator is
	// the accumulator.
	var x, y [4 * dotLanes]byte
	size := t.Size()
	blocks, rest := n/dotLanes, n%dotLanes
	if rest > 0 {
		for i := size - 1; i < len(x); i += size {
			x[i] = 0x80
		}
		done := blocks * dotLanes * size
		copy(x[:], view[byte](a, done, rest*size))
		copy(y[:], view[byte](b, done, rest*size))
	}
	return callDot(t, (*byte)(a), (*byte)(b), blocks, &x[0], &y[0], rest)
}

//go:build !amd64

package simd

import "unsafe"

func (f *fold) run(n int) { f.runPortable(0, n) }

func dot(t Type, a, b unsafe.Pointer, n int) float32 { return dotPortable(t, a, b, n) }

func widenRow(t Type, dst *float32, src unsafe.Pointer, lo, n int) {
	widen(t, unsafe.Slice(dst, n), src, lo)
}

func narrowRow(t Type, dst unsafe.Pointer, lo int, src *float32, n int) {
	narrow(t, dst, lo, unsafe.Slice(src, n))
}

func widenDoubles(dst unsafe.Pointer, lo int, src *float32, n int) {
	widenDoublesPortable(dst, lo, unsafe.Slice(src, n))
}

func narrowDoubles(dst *float32, src unsafe.Pointer, lo, n int, odd bool) {
	narrowDoublesPortable(unsafe.Slice(dst, n), src, lo, odd)
}

func quantize(t Type, q unsafe.Pointer, scales *float32, src unsafe.Pointer, groups int, pow2 bool) {
	quantizePortable(t, q, scales, src, groups, pow2)
}

func dequantize(t Type, dst, q unsafe.Pointer, scales *float32, groups int) {
	dequantizePortable(t, dst, q, scales, groups)
}

func copyRow(dst, src unsafe.Pointer, n int, _ bool) { copyPortable(dst, src, n) }

func fanOut(dst []unsafe.Pointer, src unsafe.Pointer, n int, _ bool) {
	for _, d := range dst {
		copyPortable(d, src, n)
	}
}

func zeroRow(dst unsafe.Pointer, n int, _ bool) { clear(view[byte](dst, 0, n)) }

// StoreFence orders the streaming stores before it with every later store. Here no kernel streams,
// so there is nothing to do.
func StoreFence() {}

//go:build !amd64

package simd

import "unsafe"

func (f *fold) run(n int) { f.runPortable(0, n) }

func dot(t Type, a, b unsafe.Pointer, n int) float32 { return dotPortable(t, a, b, n) }

func quantize(t Type, q unsafe.Pointer, scales *float32, src unsafe.Pointer, groups int, pow2 bool) {
	quantizePortable(t, q, scales, src, groups, pow2)
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

package simd

import "unsafe"

// widen converts elements lo, lo+1, ... of the row src to fp32, as many as x holds. F32 is copied
// as it is.
func widen(t Type, x []float32, src unsafe.Pointer, lo int) {
	switch t {
	case BF16:
		for i, b := range view[uint16](src, lo, len(x)) {
			x[i] = BF16ToF32(b)
		}
	case F16:
		for i, b := range view[uint16](src, lo, len(x)) {
			x[i] = F16ToF32(b)
		}
	case F32:
		copy(x, view[float32](src, lo, len(x)))
	case E4M3:
		for i, b := range view[uint8](src, lo, len(x)) {
			x[i] = e4m3Table[b]
		}
	case E5M2:
		for i, b := range view[uint8](src, lo, len(x)) {
			x[i] = e5m2Table[b]
		}
	default:
		panic("simd: widen " + t.String())
	}
}

// narrow rounds x to elements lo, lo+1, ... of the row dst.
func narrow(t Type, dst unsafe.Pointer, lo int, x []float32) {
	switch t {
	case BF16:
		for i, out := 0, view[uint16](dst, lo, len(x)); i < len(out); i++ {
			out[i] = BF16FromF32(x[i])
		}
	case F16:
		for i, out := 0, view[uint16](dst, lo, len(x)); i < len(out); i++ {
			out[i] = F16FromF32(x[i])
		}
	case F32:
		for i, out := 0, view[float32](dst, lo, len(x)); i < len(out); i++ {
			out[i] = canonF32(x[i])
		}
	case E4M3:
		for i, out := 0, view[uint8](dst, lo, len(x)); i < len(out); i++ {
			out[i] = E4M3FromF32(x[i])
		}
	case E5M2:
		for i, out := 0, view[uint8](dst, lo, len(x)); i < len(out); i++ {
			out[i] = E5M2FromF32(x[i])
		}
	default:
		panic("simd: narrow to " + t.String())
	}
}

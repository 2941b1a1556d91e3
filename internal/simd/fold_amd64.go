package simd

import "unsafe"

// The kernels are called by name, not through a table of functions: only so does escape analysis
// know that they keep no pointer, and the callers' row tables stay on the stack.

// callBytes bounds the memory that one call into assembly touches. Assembly cannot be preempted,
// and a garbage collection waits for it.
const callBytes = 1 << 20

// callStep returns how many bytes of each of n rows a call may take, in whole blocks.
func callStep(n int) int { return max(callBytes/n, 4096) &^ 4095 }

func (f *fold) run(n int) {
	if active == portable {
		f.runPortable(0, n)
		return
	}
	rows := (**byte)(unsafe.Pointer(unsafe.SliceData(f.rows)))
	w := unsafe.SliceData(f.w)
	size := n * f.t.Size()
	step := callStep(len(f.rows) + 1)
	for lo := 0; lo < size; lo += step {
		hi := min(lo+step, size)
		if active == avx512 {
			f.runAVX512(rows, w, lo, hi)
		} else {
			f.runAVX2(rows, w, lo, hi)
		}
	}
}

func (f *fold) runAVX512(rows **byte, w *float32, lo, hi int) {
	out, k, op := (*byte)(f.out), len(f.rows), int(f.op)
	switch f.t {
	case BF16:
		foldBF16AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case F16:
		foldF16AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case F32:
		foldF32AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case F64:
		foldF64AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I8, U8:
		foldI8AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I16, U16:
		foldI16AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I32, U32:
		foldI32AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I64, U64:
		foldI64AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case E4M3:
		foldE4M3AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case E5M2:
		foldE5M2AVX512(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	}
}

func (f *fold) runAVX2(rows **byte, w *float32, lo, hi int) {
	out, k, op := (*byte)(f.out), len(f.rows), int(f.op)
	switch f.t {
	case BF16:
		foldBF16AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case F16:
		foldF16AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case F32:
		foldF32AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case F64:
		foldF64AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I8, U8:
		foldI8AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I16, U16:
		foldI16AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I32, U32:
		foldI32AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case I64, U64:
		foldI64AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case E4M3:
		foldE4M3AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	case E5M2:
		foldE5M2AVX2(out, rows, w, k, lo, hi, op, f.init, f.flip, f.div)
	}
}

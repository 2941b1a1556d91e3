package simd

import "unsafe"

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
	t := f.t
	if t >= U8 && t <= U64 {
		t -= U8 - I8 // which have the same kernels
	}
	rows := (**byte)(unsafe.Pointer(unsafe.SliceData(f.rows)))
	w := unsafe.SliceData(f.w)
	size := n * t.Size()
	step := callStep(len(f.rows) + 1)
	for lo := 0; lo < size; lo += step {
		callFold(t, (*byte)(f.out), rows, w, len(f.rows), lo, min(lo+step, size), int(f.op), f.init, f.flip, f.div)
	}
}

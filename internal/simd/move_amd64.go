package simd

import "unsafe"

const cacheLine = 64

func misalignment(p unsafe.Pointer) int { return int(uintptr(p) & (cacheLine - 1)) }

func copyRow(dst, src unsafe.Pointer, n int, stream bool) {
	d := [1]unsafe.Pointer{dst}
	fanOut(d[:], src, n, stream)
}

func fanOut(dst []unsafe.Pointer, src unsafe.Pointer, n int, stream bool) {
	aligned := true
	for _, d := range dst {
		aligned = aligned && misalignment(d) == 0
	}
	switch {
	case active == portable:
		for _, d := range dst {
			copyPortable(d, src, n)
		}
	case !stream || aligned:
		fanOutLines(dst, src, n, stream)
	default:
		// Each destination apart, after what precedes its first whole line.
		for _, d := range dst {
			head := min(n, -misalignment(d)&(cacheLine-1))
			copyPortable(d, src, head)
			if head == n {
				continue
			}
			one := [1]unsafe.Pointer{unsafe.Add(d, head)}
			fanOutLines(one[:], unsafe.Add(src, head), n-head, true)
		}
	}
}

// fanOutLines copies the whole lines with the kernels, the rest without them.
func fanOutLines(dst []unsafe.Pointer, src unsafe.Pointer, n int, stream bool) {
	whole := n &^ (cacheLine - 1)
	table := (**byte)(unsafe.Pointer(unsafe.SliceData(dst)))
	step := callStep(len(dst) + 1)
	for lo := 0; lo < whole; lo += step {
		hi := min(lo+step, whole)
		if stream {
			callFanOutStream(table, len(dst), (*byte)(src), lo, hi)
		} else {
			callFanOut(table, len(dst), (*byte)(src), lo, hi)
		}
	}
	if whole < n {
		for _, d := range dst {
			copyPortable(unsafe.Add(d, whole), unsafe.Add(src, whole), n-whole)
		}
	}
}

func zeroRow(dst unsafe.Pointer, n int, stream bool) {
	if active == portable || !stream {
		clear(view[byte](dst, 0, n))
		return
	}
	head := min(n, -misalignment(dst)&(cacheLine-1))
	clear(view[byte](dst, 0, head))
	whole := (n - head) &^ (cacheLine - 1)
	for lo := 0; lo < whole; lo += callBytes {
		callZeroStream((*byte)(unsafe.Add(dst, head+lo)), min(callBytes, whole-lo))
	}
	clear(view[byte](dst, head+whole, n-head-whole))
}

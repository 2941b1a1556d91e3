package dl

import (
	"runtime"
	"slices"
	"unsafe"
)

// registers is how many arguments the AArch64 procedure call standard passes in registers.
const registers = 8

// CallStruct calls f(a, s, b) where C takes s, a struct of more than 16 bytes without floats, by
// value: the caller makes a copy and passes its address. The copy is the callee's to write to.
func (f Func) CallStruct(a uintptr, s []uint64, b uintptr) uintptr {
	s = slices.Clone(s)
	result := f.Call(a, uintptr(unsafe.Pointer(unsafe.SliceData(s))), b)
	runtime.KeepAlive(s)
	return result
}

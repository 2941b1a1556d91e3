//go:build linux && (amd64 || arm64)

package dl

import (
	"unsafe"

	_ "github.com/ebitengine/purego" // boots the C runtime of a program that has no cgo
)

// A frame is the memory that the stub reads and writes. The assembly knows its fields by name.
type frame struct {
	fn       uintptr
	args     [MaxArgs]uintptr
	result   uintptr
	first    uintptr // called with firstArg before fn, unless it is zero
	firstArg uintptr
	spill    uintptr // whether there are more arguments than registers
}

// stub is the address of the assembly that runs on the thread's own stack.
var stub uintptr

// The runtime keeps this function linkable for purego. A frame on the goroutine's stack is safe
// because the runtime neither grows nor shrinks the stack of a goroutine that is in C.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn uintptr, arg unsafe.Pointer) int32

func (f Func) call(first Func, firstArg uintptr, args []uintptr) uintptr {
	if f == 0 {
		panic("dl: call of a nil function")
	}
	fr := frame{fn: uintptr(f), first: uintptr(first), firstArg: firstArg}
	if copied := copy(fr.args[:], args); copied < len(args) {
		panic("dl: too many arguments")
	}
	if len(args) > registers {
		fr.spill = 1
	}
	cgocall(stub, unsafe.Pointer(&fr))
	return fr.result
}

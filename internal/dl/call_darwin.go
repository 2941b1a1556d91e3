package dl

import (
	"runtime"

	"github.com/ebitengine/purego"
)

func (f Func) call(first Func, firstArg uintptr, args []uintptr) uintptr {
	if first != 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if result, _, _ := purego.SyscallN(uintptr(first), firstArg); uint32(result) != 0 {
			return result
		}
	}
	result, _, _ := purego.SyscallN(uintptr(f), args...)
	return result
}

// CallStruct is for libraries that this platform does not have.
func (f Func) CallStruct(uintptr, []uint64, uintptr) uintptr { panic("dl: " + ErrUnsupported.Error()) }

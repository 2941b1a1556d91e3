package dl

import "runtime"

// registers is how many arguments the System V ABI passes in registers.
const registers = 6

// CallStruct calls f(a, s, b) where C takes s, a struct of more than 16 bytes without floats, by
// value. It goes on the stack and uses up no register, so the arguments around it close ranks.
func (f Func) CallStruct(a uintptr, s []uint64, b uintptr) uintptr {
	args := make([]uintptr, registers, MaxArgs)
	args[0], args[1] = a, b
	for _, word := range s {
		args = append(args, uintptr(word))
	}
	result := f.Call(args...)
	runtime.KeepAlive(s)
	return result
}

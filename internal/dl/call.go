package dl

// Func is the address of a C function that takes and returns integers and pointers.
type Func uintptr

// MaxArgs is the most arguments that a call takes.
const MaxArgs = 16

// Call calls the function and returns its result. A C int is in the result's low 32 bits; the
// others are undefined. It does not allocate, may be called by many goroutines, and blocks only its
// own.
func (f Func) Call(args ...uintptr) uintptr { return f.call(0, 0, args) }

// CallAfter calls first(arg) and, if the low 32 bits of its result are zero, f(args...), both on
// the same thread and in one crossing into C. It returns the result of the last function that it
// called.
func (f Func) CallAfter(first Func, arg uintptr, args ...uintptr) uintptr {
	return f.call(first, arg, args)
}

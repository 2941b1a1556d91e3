package dl

import (
	"runtime"
	"unsafe"
)

// The Bind functions give a C function a Go type: that of its parameters, and of its result, an int
// or an enumeration. Parameters are integers of any size or pointers. The memory behind a pointer
// is on the heap, because the arguments of a function value escape, and is kept alive over the
// call. The functions neither allocate nor reflect. They differ only in their number of parameters,
// which Go's generics cannot range over.

// Bind1 binds a function of 1 parameter.
func Bind1[A any, R ~int32](fn Func) func(A) R {
	return func(a A) R {
		r := fn.Call(Word(a))
		runtime.KeepAlive(a)
		return R(r)
	}
}

// Bind2 binds a function of 2 parameters.
func Bind2[A, B any, R ~int32](fn Func) func(A, B) R {
	return func(a A, b B) R {
		r := fn.Call(Word(a), Word(b))
		runtime.KeepAlive(a)
		runtime.KeepAlive(b)
		return R(r)
	}
}

// Bind3 binds a function of 3 parameters.
func Bind3[A, B, C any, R ~int32](fn Func) func(A, B, C) R {
	return func(a A, b B, c C) R {
		r := fn.Call(Word(a), Word(b), Word(c))
		runtime.KeepAlive(a)
		runtime.KeepAlive(b)
		runtime.KeepAlive(c)
		return R(r)
	}
}

// Bind4 binds a function of 4 parameters.
func Bind4[A, B, C, D any, R ~int32](fn Func) func(A, B, C, D) R {
	return func(a A, b B, c C, d D) R {
		r := fn.Call(Word(a), Word(b), Word(c), Word(d))
		runtime.KeepAlive(a)
		runtime.KeepAlive(b)
		runtime.KeepAlive(c)
		runtime.KeepAlive(d)
		return R(r)
	}
}

// Bind5 binds a function of 5 parameters.
func Bind5[A, B, C, D, E any, R ~int32](fn Func) func(A, B, C, D, E) R {
	return func(a A, b B, c C, d D, e E) R {
		r := fn.Call(Word(a), Word(b), Word(c), Word(d), Word(e))
		runtime.KeepAlive(a)
		runtime.KeepAlive(b)
		runtime.KeepAlive(c)
		runtime.KeepAlive(d)
		runtime.KeepAlive(e)
		return R(r)
	}
}

// Bind6 binds a function of 6 parameters.
func Bind6[A, B, C, D, E, F any, R ~int32](fn Func) func(A, B, C, D, E, F) R {
	return func(a A, b B, c C, d D, e E, f F) R {
		r := fn.Call(Word(a), Word(b), Word(c), Word(d), Word(e), Word(f))
		runtime.KeepAlive(a)
		runtime.KeepAlive(b)
		runtime.KeepAlive(c)
		runtime.KeepAlive(d)
		runtime.KeepAlive(e)
		runtime.KeepAlive(f)
		return R(r)
	}
}

// Word is v as C finds it in a register: zero-extended, which C does not look at.
func Word[T any](v T) uintptr {
	switch unsafe.Sizeof(v) {
	case 1:
		return uintptr(*(*uint8)(unsafe.Pointer(&v)))
	case 2:
		return uintptr(*(*uint16)(unsafe.Pointer(&v)))
	case 4:
		return uintptr(*(*uint32)(unsafe.Pointer(&v)))
	default:
		return *(*uintptr)(unsafe.Pointer(&v))
	}
}

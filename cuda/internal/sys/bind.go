package sys

import (
	"encoding/binary"
	"reflect"
	"runtime"

	"github.com/weftgo/weft/internal/dl"
)

// An entry ties a field of the table to the driver's symbol.
type entry struct {
	symbol  string // as cuGetProcAddress wants it
	suffix  string // of the exported name
	version int    // of CUDA, that brought this form of the function
	field   any    // a pointer to a field that is a function
	// bind makes the field call fn, after setCurrent if it takes a context.
	bind func(fn, setCurrent dl.Func)
}

// missing makes the field answer Missing.
func (e *entry) missing() {
	field := reflect.ValueOf(e.field).Elem()
	field.Set(reflect.MakeFunc(field.Type(), func([]reflect.Value) []reflect.Value {
		return []reflect.Value{reflect.ValueOf(Missing)}
	}))
}

// The makers of entries: callN has N parameters, inN has a context before them. The bound functions
// neither allocate nor reflect, so they cost no more than the call. They differ only in their
// number of parameters, which Go's generics cannot range over.

func call1[A any](symbol, suffix string, version int, field *func(A) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, _ dl.Func) { *field = dl.Bind1[A, Result](fn) },
	}
}

func call2[A, B any](symbol, suffix string, version int, field *func(A, B) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, _ dl.Func) { *field = dl.Bind2[A, B, Result](fn) },
	}
}

func call3[A, B, C any](symbol, suffix string, version int, field *func(A, B, C) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, _ dl.Func) { *field = dl.Bind3[A, B, C, Result](fn) },
	}
}

func call4[A, B, C, D any](symbol, suffix string, version int, field *func(A, B, C, D) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, _ dl.Func) { *field = dl.Bind4[A, B, C, D, Result](fn) },
	}
}

func call5[A, B, C, D, E any](symbol, suffix string, version int, field *func(A, B, C, D, E) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, _ dl.Func) { *field = dl.Bind5[A, B, C, D, E, Result](fn) },
	}
}

func in0(symbol, suffix string, version int, field *func(Context) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context) Result {
				r := after(fn, setCurrent, in)
				return r
			}
		},
	}
}

func in1[A any](symbol, suffix string, version int, field *func(Context, A) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A) Result {
				r := after(fn, setCurrent, in, dl.Word(a))
				runtime.KeepAlive(a)
				return r
			}
		},
	}
}

func in2[A, B any](symbol, suffix string, version int, field *func(Context, A, B) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A, b B) Result {
				r := after(fn, setCurrent, in, dl.Word(a), dl.Word(b))
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
				return r
			}
		},
	}
}

func in3[A, B, C any](symbol, suffix string, version int, field *func(Context, A, B, C) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A, b B, c C) Result {
				r := after(fn, setCurrent, in, dl.Word(a), dl.Word(b), dl.Word(c))
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
				runtime.KeepAlive(c)
				return r
			}
		},
	}
}

func in4[A, B, C, D any](symbol, suffix string, version int, field *func(Context, A, B, C, D) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A, b B, c C, d D) Result {
				r := after(fn, setCurrent, in, dl.Word(a), dl.Word(b), dl.Word(c), dl.Word(d))
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
				runtime.KeepAlive(c)
				runtime.KeepAlive(d)
				return r
			}
		},
	}
}

func in5[A, B, C, D, E any](symbol, suffix string, version int, field *func(Context, A, B, C, D, E) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A, b B, c C, d D, e E) Result {
				r := after(fn, setCurrent, in, dl.Word(a), dl.Word(b), dl.Word(c), dl.Word(d), dl.Word(e))
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
				runtime.KeepAlive(c)
				runtime.KeepAlive(d)
				runtime.KeepAlive(e)
				return r
			}
		},
	}
}

func in6[A, B, C, D, E, F any](symbol, suffix string, version int,
	field *func(Context, A, B, C, D, E, F) Result,
) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A, b B, c C, d D, e E, f F) Result {
				r := after(fn, setCurrent, in, dl.Word(a), dl.Word(b), dl.Word(c),
					dl.Word(d), dl.Word(e), dl.Word(f))
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
				runtime.KeepAlive(c)
				runtime.KeepAlive(d)
				runtime.KeepAlive(e)
				runtime.KeepAlive(f)
				return r
			}
		},
	}
}

func in11[A, B, C, D, E, F, G, H, I, J, K any](
	symbol, suffix string, version int, field *func(Context, A, B, C, D, E, F, G, H, I, J, K) Result,
) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, a A, b B, c C, d D, e E, f F, g G, h H, i I, j J, k K) Result {
				r := after(fn, setCurrent, in, dl.Word(a), dl.Word(b), dl.Word(c), dl.Word(d),
					dl.Word(e), dl.Word(f), dl.Word(g), dl.Word(h), dl.Word(i), dl.Word(j), dl.Word(k))
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
				runtime.KeepAlive(c)
				runtime.KeepAlive(d)
				runtime.KeepAlive(e)
				runtime.KeepAlive(f)
				runtime.KeepAlive(g)
				runtime.KeepAlive(h)
				runtime.KeepAlive(i)
				runtime.KeepAlive(j)
				runtime.KeepAlive(k)
				return r
			}
		},
	}
}

// byValue is for the one function that takes a large struct by value. It makes two crossings, on a
// locked thread.
func byValue(symbol, suffix string, version int, field *func(Context, *Pointer, IpcHandle, uint32) Result) entry {
	return entry{
		symbol, suffix, version, field,
		func(fn, setCurrent dl.Func) {
			*field = func(in Context, p *Pointer, handle IpcHandle, flags uint32) Result {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				if in != 0 {
					if r := Result(setCurrent.Call(uintptr(in))); r != Success {
						return r
					}
				}
				var words [len(handle) / 8]uint64
				for i := range words {
					words[i] = binary.NativeEndian.Uint64(handle[i*8:])
				}
				r := fn.CallStruct(dl.Word(p), words[:], dl.Word(flags))
				runtime.KeepAlive(p)
				return Result(r)
			}
		},
	}
}

// after calls fn, after setCurrent if there is a context to set.
func after(fn, setCurrent dl.Func, in Context, args ...uintptr) Result {
	if in == 0 {
		setCurrent = 0
	}
	return Result(fn.CallAfter(setCurrent, uintptr(in), args...))
}

// Package dl opens shared libraries at run time and calls their C functions without cgo.
//
// # Data flow
//
// [Open] tries the names it is given and keeps the first library that loads. [Library.Lookup] turns
// a symbol into a [Func], the address of a C function, and [Func.Call] calls it with words:
// integers and pointers, never floats.
//
//	libc, err := dl.Open("libc.so.6")
//	abs, err := libc.Lookup("abs")
//	abs.Call(^uintptr(2)) // 3
//
// # How a call crosses
//
// On linux/amd64 and linux/arm64 a call fills a frame on the goroutine's stack and hands it to
// runtime.cgocall, which leaves the scheduler's accounting, switches to the thread's own stack and
// runs a few lines of assembly. These load registers from the frame, call C and store the result.
// Nothing is allocated, and a call costs as much as a cgo call. Package purego is imported for the
// rest: without cgo it gives threads the C library's thread-local storage, and it has dlopen.
// Elsewhere purego makes the calls where it can; where it cannot, everything answers
// [ErrUnsupported].
//
// [Func.CallAfter] makes two calls in one crossing. A library that keeps state per thread wants it
// set before each call, and a goroutine changes threads between two calls unless it is locked to
// one: here there is nothing in between.
//
// # What callers must see to
//
// The C function must not call back into Go: a callback may move the goroutine's stack, and with it
// the frame. Memory that an argument points at must be on the Go heap or foreign, not on a stack,
// and must be kept alive over the call with [runtime.KeepAlive], because a word keeps nothing
// alive. C must not keep a Go address after it has returned.
//
// A large struct that C takes by value goes on the stack on amd64 and by reference on arm64: see
// [Func.CallStruct].
package dl

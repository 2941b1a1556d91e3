//go:build (cgo && linux) || generate

// Command clib is libweft.so, the C library; weft.h documents it. "make clib" builds it.
//
// # How a call goes
//
// A function of weft.h is a few instructions of C in shim.c, which tools/abigen writes. It refuses
// forked children, which must not enter Go, and calls its namesake here, whose name begins with
// "go". The Go function looks its handle up (package handle says why handles are numbers), takes
// the object for itself, reads the structs up to their sizes, and makes one call of Go's API. The
// linker keeps everything but weft_* inside (version.map).
//
// Every export goes through [local] or [run], which turn panics into errors. Addresses that are not
// mapped are panics, too, while the goroutine reads them; nothing helps where assembly of a
// worker's or a GPU follows them.
//
// # Threads
//
// An exported function runs on the thread that called it, and its goroutine stays there. CUDA's
// current context needs no care: package cuda sets it in every call.
package main

//go:generate go run -C ../tools ./abigen -root ..

func main() {}

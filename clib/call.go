//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/weftgo/weft/clib/internal/handle"
)

// object is what a handle of C's stands for: a pointer to T.
type object[T any] interface {
	*T
	gate() *sync.Mutex // held by whoever is inside a call on the object
	kind() handle.Kind
	owner() *comm
}

// enter looks up the object of a handle and takes its gate. C programs do not take turns by themselves, and what is inside Go relies on it. Who comes second is
// refused: one that waited for an operation that waits for it would never be found.
func enter[T any, P object[T]](t *handle.Table[T], id uint64) (P, error) {
	o, err := t.Get(id)
	if err != nil {
		return nil, err
	}
	p := P(o)
	if !p.gate().TryLock() {
		return nil, fmt.Errorf("%w: another thread is inside a call on this %s, or on what it was made from", errBusy, p.kind())
	}
	if _, err := t.Get(id); err != nil { // it went before the gate was ours
		p.gate().Unlock()
		return nil, err
	}
	return p, nil
}

// run runs f on the object of a handle, alone.
func run[T any, P object[T]](t *handle.Table[T], id C.uint64_t, f func(P) error) (status C.int) {
	debug.SetPanicOnFault(true)
	p, err := enter[T, P](t, uint64(id))
	if err != nil {
		return fail(err)
	}
	defer func() {
		if broken := recover(); broken != nil {
			// It may have stopped in the middle of an exchange: others need not find out at their deadline.
			p.owner().weft.Abort()
			status = fail(panicked(broken))
		}
		p.gate().Unlock()
	}()
	if err := f(p); err != nil {
		return fail(err)
	}
	return C.WEFT_OK
}

// local runs f, which takes the gates that it needs by itself.
func local(f func() error) (status C.int) {
	debug.SetPanicOnFault(true)
	defer func() {
		if broken := recover(); broken != nil {
			status = fail(panicked(broken))
		}
	}()
	if err := f(); err != nil {
		return fail(err)
	}
	return C.WEFT_OK
}

func panicked(broken any) error {
	return fmt.Errorf("%w: %v\n%s", errInternal, broken, debug.Stack())
}

// add gives an object a handle and tells C.
func add[T any, P object[T]](t *handle.Table[T], o P, out unsafe.Pointer) (uint64, error) {
	id, err := t.Add(o)
	if err == nil {
		*(*uint64)(out) = id
	}
	return id, err
}

// result checks where a handle is to be put, and puts none there.
func result(out unsafe.Pointer, name string) error {
	if out == nil {
		return invalidf("%s is NULL; pass where to put it", name)
	}
	*(*uint64)(out) = 0
	return nil
}

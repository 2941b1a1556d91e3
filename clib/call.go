//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/clib/internal/naming"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/refusal"
)

// run runs f on the object of a handle, alone.
func run[T any](t *handle.Table[T], id C.uint64_t, f func(*T) error) (status C.int) {
	debug.SetPanicOnFault(true)
	o, gate, err := t.Enter(uint64(id))
	if err != nil {
		return fail(err)
	}
	returned := false
	defer func() {
		if !returned {
			// It may have stopped in the middle of an exchange: others need not find out at their
			// deadline.
			ownerOf(o).weft.Abort()
			status = fail(brokenBy(recover()))
		}
		gate.Unlock()
	}()
	if d := ownerOf(o).weft.Device(); d != nil {
		defer keepContext(d.Context())()
	}
	err = f(o)
	returned = true
	if err != nil {
		return fail(err)
	}
	return C.WEFT_OK
}

// timed is run for calls that wait no longer than the thread has set: see weft_timeout_set.
func timed[T any](t *handle.Table[T], id C.uint64_t, ms C.int64_t, f func(context.Context, *T) error) C.int {
	return run(t, id, func(o *T) error { return within(ms, func(ctx context.Context) error { return f(ctx, o) }) })
}

// within is limited with a context whose Err asks the thread's program: see asking.
func within(ms C.int64_t, f func(context.Context) error) error {
	if ms == 0 {
		return withAsk(context.Background(), f)
	}
	return limited(ms, func(ctx context.Context) error { return withAsk(ctx, f) })
}

// setUp is timed for calls that make something, which wait in more ways than a Waiter does. They are refused if the
// thread has asked for it.
func setUp(id C.uint64_t, ms C.int64_t, f func(context.Context, *comm) error) C.int {
	why := refused()
	return run(comms, id, func(c *comm) error {
		return limited(ms, func(ctx context.Context) error {
			return patiently(refusal.With(ctx, why), func(ctx context.Context, _ func(func())) error { return f(ctx, c) })
		})
	})
}

// refused is why the calling thread has its next call refused, or nil: see weft_refuse.
func refused() error {
	if why := C.libweft_refusal(); why != nil {
		return invalidf("%s", C.GoString(why))
	}
	return nil
}

// limited runs f with a context that ends after so many milliseconds, unless they are 0.
func limited(ms C.int64_t, f func(context.Context) error) error {
	if ms == 0 {
		return f(context.Background())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	err := f(ctx)
	return naming.Limited(err, int64(ms))
}

// keepContext restores the calling thread's CUDA context at the end of a call. The context is the
// caller's, and the caller's current device goes with it.
func keepContext(c *cuda.Context) (restore func()) {
	restore, err := c.Bind()
	if err != nil {
		return func() {} // the call will find out, too
	}
	return restore
}

// ownerOf is the communicator that an object was made from.
func ownerOf(o any) *comm {
	switch o := o.(type) {
	case *comm:
		return o
	case interface{ owner() *comm }:
		return o.owner()
	}
	panic("an object without a communicator")
}

// local runs f, which takes the gates that it needs by itself.
func local(f func() error) (status C.int) {
	debug.SetPanicOnFault(true)
	returned := false
	defer func() {
		if !returned {
			status = fail(brokenBy(recover()))
		}
	}()
	err := f()
	returned = true
	if err != nil {
		return fail(err)
	}
	return C.WEFT_OK
}

// add registers an object and writes its handle to C.
func add[T any](t *handle.Table[T], o *T, gate *sync.Mutex, out unsafe.Pointer) error {
	id, err := t.Add(o, gate)
	if err == nil {
		*(*uint64)(out) = id
	}
	return err
}

// own is add for an object that is made, and is closed if the handle cannot be.
func own[T any](t *handle.Table[T], o *T, gate *sync.Mutex, out unsafe.Pointer, made io.Closer) error {
	if err := add(t, o, gate, out); err != nil {
		return errors.Join(err, made.Close())
	}
	return nil
}

// result checks where a handle is to be put, and puts none there.
func result(out unsafe.Pointer, name string) error {
	if out == nil {
		return invalidf("%s is NULL; pass where to put it", name)
	}
	*(*uint64)(out) = 0
	return nil
}

//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/ep"
)

// work is the object of a weft_work: a dispatch or a combine that was sent, or a call that a group has
// started.
type work struct {
	dispatch
	pending *ep.PendingDispatch
	combine *weft.Work

	started
}

var works = handle.NewTable[work](handle.Work)

func (w *work) owner() *comm {
	if w.group != nil {
		return w.group.comm
	}
	return w.ep.comm
}

// send is the first half of a dispatch.
func (d dispatch) send(ctx context.Context, s *weft.Stream, out *C.weft_work) error {
	if err := result(unsafe.Pointer(out), "weft_work"); err != nil {
		return err
	}
	w := &work{dispatch: d}
	var err error
	if w.pending, err = d.ep.ep.SendDispatch(ctx, s, d.args()); err != nil {
		return err
	}
	return addWork(w, out)
}

// addWork gives an operation that was sent a handle. Without one no caller could complete it, and
// the handle could run no other operation: that is a failure on all ranks.
func addWork(w *work, out *C.weft_work) error {
	err := add(works, w, &w.ep.ops, unsafe.Pointer(out))
	if err != nil {
		w.ep.comm.weft.Abort()
	}
	return err
}

// await waits for a call that a group has started, and looks at its context's Err meanwhile.
func (w *work) await(ctx context.Context) error {
	if C.libweft_asking() == 0 || w.call.Done() {
		return w.call.Wait(ctx)
	}
	for {
		slice, cancel := context.WithTimeoutCause(ctx, 20*time.Millisecond, errSlice)
		err := w.call.Wait(slice)
		cancel()
		if !errors.Is(err, errSlice) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait: the call has not ended: %w", err)
		}
	}
}

// errSlice is the cause that ends one slice of a longer wait.
var errSlice = errors.New("slice of a wait")

//export goweft_work_receive
func goweft_work_receive(id C.uint64_t, out *C.weft_ep_dispatch_result, ms C.int64_t) C.int {
	return timed(works, id, ms, func(ctx context.Context, w *work) error {
		if w.pending == nil {
			return invalidf("the weft_work is no dispatch's: use weft_work_wait")
		}
		data, scales, err := resultOf(out)
		if err != nil {
			return err
		}
		works.Remove(uint64(id))
		got, err := w.pending.Receive(ctx)
		if err != nil {
			return err
		}
		return w.deliver(got, out, data, scales)
	})
}

//export goweft_work_wait
func goweft_work_wait(id C.uint64_t, ms C.int64_t) C.int {
	if w, err := works.Get(uint64(id)); err == nil && w.group != nil {
		return asked(id, func(w *work) error { return within(ms, w.await) })
	}
	return timed(works, id, ms, func(ctx context.Context, w *work) error {
		if w.combine == nil {
			return invalidf("the weft_work is a dispatch's: end it with weft_work_receive")
		}
		works.Remove(uint64(id))
		return w.combine.Wait(ctx)
	})
}

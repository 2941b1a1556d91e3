//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft"
)

// errInterrupted ends a call that its thread's program, or weft_interrupt, has ended.
var errInterrupted = fmt.Errorf("%w: interrupted", weft.ErrAborted)

// asking is a context for waits of the calling thread that look at it again and again: its Err asks the
// thread's program, which only the thread itself can do. See weft_ask_set.
type asking struct{ context.Context }

// interrupted counts the calls that programs have ended.
var interrupted atomic.Uint64

func (a asking) Err() error {
	if err := a.Context.Err(); err != nil {
		return err
	}
	if C.libweft_ask() != 0 {
		interrupted.Add(1)
		return errInterrupted
	}
	return nil
}

// background is the context of calls that no time bounds.
var background context.Context = asking{context.Background()}

// withAsk runs f with a context whose Err asks the calling thread's program, if that wants to be asked.
func withAsk(ctx context.Context, f func(context.Context) error) error {
	if C.libweft_asks == 0 {
		return f(ctx)
	}
	if ctx == context.Background() {
		ctx = background
	} else {
		ctx = asking{ctx}
	}
	before := interrupted.Load()
	err := f(ctx)
	if interrupted.Load() != before && C.libweft_ask() != 0 {
		C.libweft_ask_over()
		if err == nil { // the program was told that it would end
			err = errInterrupted
		}
	}
	return err
}

// patiently runs f in a goroutine of its own while the calling thread asks its program: for calls whose
// waits do not look at their context's Err. What f gives to the function that it gets runs on the calling
// thread.
func patiently(ctx context.Context, f func(ctx context.Context, here func(func())) error) error {
	if C.libweft_asking() == 0 {
		return f(ctx, func(run func()) { run() })
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type outcome struct {
		err    error
		broken *broken
	}
	end, calls, ran := make(chan outcome, 1), make(chan func()), make(chan struct{})
	go func() {
		debug.SetPanicOnFault(true)
		var o outcome
		returned := false
		defer func() {
			if !returned {
				o.broken = brokenBy(recover())
			}
			end <- o
		}()
		o.err = f(ctx, func(run func()) {
			calls <- run
			<-ran
		})
		returned = true
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ended := false
	for {
		select {
		case run := <-calls:
			run()
			ran <- struct{}{}
		case o := <-end:
			if o.broken != nil {
				panic(o.broken)
			}
			if ended {
				C.libweft_ask_over()
				return fmt.Errorf("%w: %w", errInterrupted, context.Canceled)
			}
			return o.err
		case <-tick.C:
			if !ended && C.libweft_ask() != 0 {
				ended = true
				cancel(errInterrupted)
			}
		}
	}
}

// joins are what ends the joins in progress.
var joins struct {
	sync.Mutex
	once    sync.Once
	cancels map[*context.CancelCauseFunc]bool
}

// interruptible is a context that weft_interrupt of no communicator ends.
func interruptible(ctx context.Context) (_ context.Context, over func()) {
	joins.once.Do(listen)
	ctx, cancel := context.WithCancelCause(ctx)
	joins.Lock()
	defer joins.Unlock()
	if joins.cancels == nil {
		joins.cancels = map[*context.CancelCauseFunc]bool{}
	}
	joins.cancels[&cancel] = true
	return ctx, func() {
		joins.Lock()
		delete(joins.cancels, &cancel)
		joins.Unlock()
		cancel(nil)
	}
}

// listen has interrupts take effect from now on.
func listen() {
	fd := C.libweft_interrupts()
	if fd < 0 {
		return // no descriptors are left, and interrupts do nothing
	}
	from := os.NewFile(uintptr(fd), "interrupts") // which does not block, so reading it takes no thread
	go func() {
		var b [8]byte
		for {
			if _, err := from.Read(b[:]); err != nil {
				return
			}
			interrupt(binary.NativeEndian.Uint64(b[:]))
		}
	}()
}

// interrupt ends the waits of a communicator, or all there are.
func interrupt(id uint64) {
	if id != 0 {
		if c, err := comms.Get(id); err == nil {
			c.weft.Abort()
		}
		return
	}
	joins.Lock()
	for cancel := range joins.cancels {
		(*cancel)(errInterrupted)
	}
	joins.Unlock()
	for _, c := range comms.All() {
		c.weft.Abort()
	}
}

// endingCalls runs f, which waits for calls of the communicator that were started; the calling thread asks its program
// meanwhile, and aborts them if it is to end.
func (c *comm) endingCalls(f func()) error {
	return patiently(context.Background(), func(ctx context.Context, _ func(func())) error {
		defer context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), errInterrupted) {
				c.weft.Abort()
			}
		})()
		f()
		return nil
	})
}

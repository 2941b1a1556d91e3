//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/collective"
)

// started is the part of a weft_work that is a call which a group has begun. It is used again.
type started struct {
	group *group
	call  *collective.Work
	alone sync.Mutex   // the handle's gate: see asked
	life  sync.RWMutex // read-locked by threads that ask, of which there may be several
}

// starts are works of a group that no call has.
type starts struct {
	mu    sync.Mutex
	spare []*work
}

func (p *starts) take(g *group) *work {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.spare)
	if n == 0 {
		return &work{started: started{group: g}}
	}
	w := p.spare[n-1]
	p.spare = p.spare[:n-1]
	return w
}

func (p *starts) give(w *work) {
	w.call = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare = append(p.spare, w)
}

//export goweft_group_start
func goweft_group_start(id C.uint64_t, stream unsafe.Pointer, args *C.weft_collective_args, out *C.weft_work,
	ms C.int64_t,
) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		if err := result(unsafe.Pointer(out), "weft_work"); err != nil {
			return err
		}
		s, err := g.read(stream, args)
		if err != nil {
			return err
		}
		w := g.starts.take(g)
		// The handle comes first: without one the call could not be waited for.
		if err := add(works, w, &w.alone, unsafe.Pointer(out)); err != nil {
			return err
		}
		if w.call, err = g.group.Start(ctx, s, g.call); err != nil {
			works.Remove(*(*uint64)(unsafe.Pointer(out)))
			g.starts.give(w)
			*(*uint64)(unsafe.Pointer(out)) = 0
		}
		return err
	})
}

// asked runs f on a work that a group has started, beside other threads that do.
func asked(id C.uint64_t, f func(*work) error) C.int {
	return local(func() error {
		w, err := works.Get(uint64(id))
		switch {
		case err != nil:
			return err
		case w.group == nil:
			return invalidf("the %s is of a weft_ep: weft_work_receive or weft_work_wait ends it", handle.Work)
		case !w.life.TryRLock():
			return fmt.Errorf("%w: another thread is releasing this %s", handle.ErrBusy, handle.Work)
		}
		defer w.life.RUnlock()
		if d := w.owner().weft.Device(); d != nil {
			defer keepContext(d.Context())()
		}
		if _, err := works.Get(uint64(id)); err != nil { // it went before the lock was ours
			return err
		}
		return f(w)
	})
}

//export goweft_work_get
func goweft_work_get(id C.uint64_t, out *C.weft_work_info) C.int {
	return asked(id, func(w *work) error {
		if err := output(out, "weft_work_info"); err != nil {
			return err
		}
		var v C.weft_work_info
		if w.call.Done() {
			v.done = 1
		}
		if w.call.Captured() {
			v.captured = 1
		}
		v.algorithm = named(w.call.Algorithm())
		fill(out, v)
		return nil
	})
}

//export goweft_work_wait_on
func goweft_work_wait_on(id C.uint64_t, stream unsafe.Pointer) C.int {
	return asked(id, func(w *work) error {
		var s streams
		on, err := s.of(w.group.comm, stream)
		if err != nil {
			return err
		}
		return w.call.WaitOn(on)
	})
}

//export goweft_work_error
func goweft_work_error(id C.uint64_t) C.int {
	return asked(id, func(w *work) error { return w.call.Err() })
}

//export goweft_work_release
func goweft_work_release(id C.uint64_t) C.int {
	return local(func() error {
		w, err := works.Get(uint64(id))
		switch {
		case err != nil:
			return err
		case w.group == nil:
			return invalidf("the %s is of a weft_ep: weft_work_receive or weft_work_wait ends it", handle.Work)
		case !w.life.TryLock():
			return fmt.Errorf("%w: another thread is inside a call on this %s", handle.ErrBusy, handle.Work)
		}
		removed, call := works.Remove(uint64(id)), w.call
		w.life.Unlock()
		if !removed { // it went before the lock was ours
			_, err := works.Get(uint64(id))
			return err
		}
		w.group.starts.give(w)
		return call.Close()
	})
}

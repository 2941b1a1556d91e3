//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/refusal"
)

// window is the object of a weft_window.
type window struct {
	comm   *comm
	window *weft.Window
	ops    sync.Mutex
}

var windows = handle.NewTable[window](handle.Window)

func (w *window) owner() *comm { return w.comm }

// newWindow makes a handle of the window that open returns.
func newWindow(id C.uint64_t, bytes C.size_t, out *C.weft_window, ms C.int64_t,
	open func(ctx context.Context, c *comm, size int) (*weft.Window, error),
) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_window"); err != nil {
			return err
		}
		if bytes > math.MaxInt {
			return invalidf("a window of %d bytes", bytes)
		}
		w, err := open(ctx, c, int(bytes))
		if err != nil {
			return err
		}
		o := &window{comm: c, window: w}
		return own(windows, o, &o.ops, unsafe.Pointer(out), w)
	})
}

//export goweft_window_create
func goweft_window_create(id C.uint64_t, bytes C.size_t, out *C.weft_window, ms C.int64_t) C.int {
	return newWindow(id, bytes, out, ms, func(ctx context.Context, c *comm, size int) (*weft.Window, error) {
		return c.weft.Alloc(ctx, size)
	})
}

//export goweft_window_create_from_fd
func goweft_window_create_from_fd(id C.uint64_t, fd C.int, bytes C.size_t, out *C.weft_window, ms C.int64_t) C.int {
	return newWindow(id, bytes, out, ms, func(ctx context.Context, c *comm, size int) (*weft.Window, error) {
		// Register takes the descriptor for its own, C's callers keep theirs.
		mine, err := C.libweft_duplicate(fd)
		if mine < 0 { // which is not wrong as C: the others hear of it
			ctx = refusal.With(ctx, fmt.Errorf("%w: descriptor %d: %w", weft.ErrInvalid, fd, err))
		}
		return c.weft.Register(ctx, int(mine), size)
	})
}

//export goweft_window_create_from_memory
func goweft_window_create_from_memory(id C.uint64_t, memory unsafe.Pointer, bytes C.size_t, out *C.weft_window,
	ms C.int64_t,
) C.int {
	return newWindow(id, bytes, out, ms, func(ctx context.Context, c *comm, size int) (*weft.Window, error) {
		if memory == nil {
			return nil, invalidf("a window of memory at NULL")
		}
		if c.weft.Device() != nil {
			return c.weft.RegisterDevice(ctx, cuda.Pointer(uintptr(memory)), size)
		}
		return c.weft.RegisterMemory(ctx, unsafe.Slice((*byte)(memory), size))
	})
}

//export goweft_window_get
func goweft_window_get(id C.uint64_t, info *C.weft_window_info) C.int {
	return run(windows, id, func(w *window) error {
		if err := output(info, "weft_window_info"); err != nil {
			return err
		}
		fill(info, C.weft_window_info{
			id: C.uint64_t(w.window.ID()), bytes: C.uint64_t(w.window.Size()),
			memory: w.peer(w.comm.weft.Rank()),
		})
		return nil
	})
}

//export goweft_window_peer
func goweft_window_peer(id C.uint64_t, rank C.int, out *unsafe.Pointer) C.int {
	return run(windows, id, func(w *window) error {
		if out == nil {
			return invalidf("memory is NULL; pass where to put it")
		}
		*out = nil
		if rank < 0 || int(rank) >= w.comm.weft.Size() {
			return invalidf("rank %d of %d", rank, w.comm.weft.Size())
		}
		*out = w.peer(int(rank))
		return nil
	})
}

// peer is the address of a rank's segment, for C.
func (w *window) peer(rank int) unsafe.Pointer {
	if w.comm.weft.Device() != nil {
		return weft.DeviceTensor(w.window.PeerPointer(rank), weft.Uint8, w.window.Size()).Data
	}
	return unsafe.Pointer(unsafe.SliceData(w.window.Peer(rank)))
}

//export goweft_window_destroy
func goweft_window_destroy(id C.uint64_t) C.int {
	return run(windows, id, func(w *window) error {
		windows.Remove(uint64(id))
		return w.window.Close()
	})
}

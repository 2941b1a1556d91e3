package proxy

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// Hand is what a call has while its stream waits for it. It is for the proxy's goroutine.
type Hand struct {
	proxy       *Proxy
	op          string
	first, last uint64 // sequences: before the operation's orders, and of the last one
	ended       bool
}

// Mark says how far the kernel is to have copied.
type Mark uint64

// Copy orders a copy of n bytes, within the GPU's memory or between it and pinned memory, by addresses of the GPU's. It
// waits only while 64 copies are underway. Those that overlap are in order only if the second is ordered after an
// Await of the first.
func (h *Hand) Copy(dst, src cuda.Pointer, n int) (Mark, error) {
	if n == 0 {
		return Mark(h.last), nil
	}
	if n < 0 {
		return 0, weft.Invalidf("%s: a copy of %d bytes", h.op, n)
	}
	return h.order(dst, src, n)
}

func (h *Hand) order(dst, src cuda.Pointer, n int) (Mark, error) {
	if h.last-h.first >= 1<<sequenceBits-2 {
		return 0, weft.Unsupportedf("%s: more than %d copies in one call: make it of smaller operands", h.op,
			1<<sequenceBits-2)
	}
	next := h.last + 1
	if next-h.first > slots {
		if err := h.Await(Mark(next - slots)); err != nil {
			return 0, err
		}
	}
	o := (*order)(unsafe.Pointer(&h.proxy.memory.Bytes()[ordersAt+int(next%slots)*int(unsafe.Sizeof(order{}))]))
	atomic.StoreUint64(&o.dst, uint64(dst))
	atomic.StoreUint64(&o.src, uint64(src))
	atomic.StoreUint64(&o.bytes, uint64(n))
	atomic.StoreUint64(&o.sequence, next)
	h.last = next
	h.Beat()
	return Mark(next), nil
}

// Await waits until the kernel has copied all up to a mark: the host sees what came to pinned memory, and may use
// anew what was read from there.
func (h *Hand) Await(m Mark) error {
	done := func() bool {
		for b := range h.proxy.blocks {
			if h.proxy.word(doneAt+8*b).Load() < uint64(m) {
				return false
			}
		}
		return true
	}
	if uint64(m) <= h.first || done() {
		return nil
	}
	what := func() string { return "for copies of its GPU" }
	return h.proxy.waiter.UntilOwn(context.Background(), h.op, what, done)
}

// Beat says that the call gets on, though it orders nothing: the kernel gives it twice the deadline from here.
func (h *Hand) Beat() { h.proxy.word(beatAt).Add(1) }

// end lets the kernel end, once it has copied all.
func (h *Hand) end() error {
	if h.ended {
		return fmt.Errorf("%s: %w: it has ended", h.op, weft.ErrInvalid)
	}
	h.ended = true
	_, err := h.order(0, 0, 0)
	return err
}

func yield() { runtime.Gosched() }

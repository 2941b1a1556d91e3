package proxy

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// Hand is what a call has while its stream waits for it. It is for the proxy's goroutine.
type Hand struct {
	proxy       *Proxy
	op          string
	first, last uint64 // sequences: before the operation's orders, and of the last one
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
	if h.last-h.first >= 1<<sequenceBits-2 {
		return 0, weft.Unsupportedf("%s: more than %d copies in one call: make it of smaller operands", h.op,
			1<<sequenceBits-2)
	}
	if next := h.last + 1; next-h.first > slots {
		if err := h.Await(Mark(next - slots)); err != nil {
			return 0, err
		}
	}
	return h.order(uint64(dst), uint64(src), n), nil
}

// order writes an order into a slot that is free.
func (h *Hand) order(dst, src uint64, n int) Mark {
	next := h.last + 1
	o := (*order)(unsafe.Pointer(&h.proxy.memory.Bytes()[ordersAt+int(next%slots)*int(unsafe.Sizeof(order{}))]))
	atomic.StoreUint64(&o.dst, dst)
	atomic.StoreUint64(&o.src, src)
	atomic.StoreUint64(&o.bytes, uint64(n))
	atomic.StoreUint64(&o.sequence, next)
	h.last = next
	h.Beat()
	return Mark(next)
}

// Await waits until the kernel has copied all up to a mark: the host sees what came to pinned memory, and may use
// anew what was read from there.
func (h *Hand) Await(m Mark) error {
	done := func() bool { return h.copied(uint64(m)) }
	if done() {
		return nil
	}
	what := func() string { return "for copies of its GPU" }
	return h.proxy.waiter.UntilOwn(context.Background(), h.op, what, done)
}

// copied says whether all blocks have carried out an order.
func (h *Hand) copied(sequence uint64) bool {
	for b := range h.proxy.blocks {
		if sequence > h.first && h.proxy.word(doneAt+8*b).Load() < sequence {
			return false
		}
	}
	return true
}

// Beat says that the call gets on, though it orders nothing: the kernel gives it twice the deadline from here.
func (h *Hand) Beat() { h.proxy.word(beatAt).Add(1) }

// end lets the kernel end, once it has copied all: well, or as one that has failed. The kernel copies whatever has
// become of the communicator, so there is room for the order soon; without, the kernel ends by itself.
func (h *Hand) end(how uint64) {
	for begun := time.Now(); h.last+1-h.first > slots && !h.copied(h.last+1-slots); time.Sleep(10 * time.Microsecond) {
		if time.Since(begun) > 2*h.proxy.comm.Deadline() {
			return
		}
	}
	h.order(how, 0, 0)
}

func yield() { runtime.Gosched() }

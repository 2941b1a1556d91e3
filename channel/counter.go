package channel

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// CounterBytes is how much of a [Counter]'s lines it uses itself. The rest of the line may hold the
// data that the counter announces: the reader has the line already.
const CounterBytes = 12

// Stride is the distance in bytes between two words that different ranks write: two cache lines,
// because the adjacent-line prefetcher of common processors moves lines in pairs.
const Stride = 128

// Counter is a monotonic 64-bit word in shared memory with one writer and any number of waiters. It
// fills its own pair of cache lines. The writer publishes growing values. A reader that sees a
// value also sees every store that the writer made before publishing it. A Counter is never reset,
// so nothing races with a reset.
//
// The zero value is ready. A Counter must lie on a multiple of [Stride] and is laid over shared
// memory with [CounterAt].
type Counter struct {
	value    atomic.Uint64
	sleepers atomic.Uint32
	_        [Stride - CounterBytes]byte
}

// CounterAt lays a Counter over mem[offset:]. The memory must be shared with every rank that uses
// the Counter.
func CounterAt(mem []byte, offset int) *Counter {
	_ = mem[offset : offset+Stride : len(mem)]
	p := unsafe.Pointer(&mem[offset])
	if uintptr(p)%8 != 0 {
		panic("channel: counter is not aligned")
	}
	return (*Counter)(p)
}

// Load returns the last value published.
func (c *Counter) Load() uint64 {
	v := c.value.Load()
	acquire(unsafe.Pointer(c))
	return v
}

// reached reports whether the value is at least want.
func (c *Counter) reached(want uint64) bool {
	if c.value.Load() < want {
		return false
	}
	acquire(unsafe.Pointer(c))
	return true
}

// Publish sets the value and wakes the ranks that sleep on it. Only the Counter's one writer may
// call it, with values that grow.
func (c *Counter) Publish(v uint64) {
	// A sequentially consistent store (XCHG on amd64): the load of sleepers below cannot move
	// before it, and a waiter raises sleepers before it looks at the value for the last time. One
	// of the two sees the other.
	release(unsafe.Pointer(c))
	c.value.Store(v)
	if c.sleepers.Load() != 0 {
		wake(&c.value)
	}
}

// Add publishes the value plus n for counters that several ranks advance, and returns the new
// value.
func (c *Counter) Add(n uint64) uint64 {
	release(unsafe.Pointer(c))
	v := c.value.Add(n)
	if c.sleepers.Load() != 0 {
		wake(&c.value)
	}
	return v
}

// doze sleeps until the value changes, but no longer than d, and not at all once it has reached
// want. It may also return for no reason.
func (c *Counter) doze(want uint64, d time.Duration) {
	seen := c.value.Load()
	c.sleepers.Add(1)
	if c.value.Load() < want {
		sleep(&c.value, uint32(seen), d)
	}
	c.sleepers.Add(^uint32(0))
}

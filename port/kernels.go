package port

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric"
)

// Kernels is the way of one GPU's kernels into a proxy: a ring in pinned memory of the host, whose head is in the
// GPU's memory, and for each channel a line in pinned memory that the proxy writes. Header port.cuh of package
// device has the other side.
type Kernels struct {
	proxy   *Proxy
	context *cuda.Context
	host    *cuda.HostMemory
	memory  *cuda.Memory
	ring    *ring

	// Under the proxy's lock.
	closed bool
	slots  map[*lane]int // of channels

	lines []*line // what the proxy shows; the proxy's alone
}

// line is what the proxy tells kernels of a channel. Device: PortLine.
type line struct {
	lane             *lane
	arrived, flushed *atomic.Uint64
	shown            uint64
	failed           bool
}

// MaxKernelChannels is the most channels of one Kernels.
const MaxKernelChannels = 1024

// Where things lie in the pinned memory: the tail, the slots, the lines.
const (
	tailAt  = 0
	slotsAt = device.PortLineBytes
)

// Kernels lets kernels of a GPU push to the proxy's channels. While it is open the proxy never sleeps for longer
// than 50 us, since no kernel can wake it. Close it when no kernel runs that has its channels.
func (x *Proxy) Kernels(c *cuda.Context) (*Kernels, error) {
	k := &Kernels{proxy: x, context: c, slots: map[*lane]int{}}
	linesAt := k.linesAt()
	var err error
	if k.host, err = c.AllocHost(linesAt+MaxKernelChannels*device.PortLineBytes, cuda.HostOptions{}); err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	clear(k.host.Bytes())
	size := device.PortHeadBytes + 8*MaxKernelChannels
	if k.memory, err = c.Alloc(size); err == nil {
		err = c.Upload(k.memory.Pointer(), make([]byte, size))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kernels: %w", err), k.free())
	}
	slots := unsafe.Slice((*slot)(unsafe.Pointer(&k.host.Bytes()[slotsAt])), x.options.Depth)
	k.ring = newRing(slots, nil, k.word(tailAt))
	k.ring.flushed = func(l *lane, position uint64) {
		for _, i := range k.lines {
			if i.lane == l {
				i.flushed.Store(position + 1)
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, errors.Join(fmt.Errorf("kernels: %w", fabric.ErrClosed), k.free())
	}
	x.call(func() { x.kernels, x.rings = append(x.kernels, k), append(x.rings, k.ring) })
	return k, nil
}

func (k *Kernels) linesAt() int {
	return slotsAt + k.proxy.options.Depth*int(unsafe.Sizeof(slot{}))
}

// word is a word of the pinned memory.
func (k *Kernels) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&k.host.Bytes()[at]))
}

// Channel is a channel as kernels take it, in their arguments. A signal is consumed either by Wait and Poll of
// the host or by those of kernels: a channel whose kernels wait has no waits of the host.
func (k *Kernels) Channel(c *Channel) (device.PortChannel, error) {
	x := k.proxy
	if c.proxy != x {
		return device.PortChannel{}, invalid("kernels: the channel is another proxy's")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || k.closed {
		return device.PortChannel{}, fmt.Errorf("kernels: %w", fabric.ErrClosed)
	}
	at, known := k.slots[c.lane]
	if !known {
		if at = len(k.slots); at == MaxKernelChannels {
			return device.PortChannel{}, invalid("kernels: at most %d channels: make another Kernels", at)
		}
		k.slots[c.lane] = at
		words := k.linesAt() + at*device.PortLineBytes
		l := &line{lane: c.lane, arrived: k.word(words), flushed: k.word(words + 8)}
		x.call(func() {
			k.lines = append(k.lines, l)
			l.show()
		})
	}
	base, memory, depth := k.host.Pointer(), k.memory.Pointer(), uint32(x.options.Depth)
	d := device.PortChannel{
		Slots: uint64(base.Add(slotsAt)), Tail: uint64(base.Add(tailAt)), Head: uint64(memory),
		Line:     uint64(base.Add(k.linesAt() + at*device.PortLineBytes)),
		Taken:    uint64(memory.Add(device.PortHeadBytes + 8*at)),
		DstBytes: uint64(c.dst.Bytes()), SrcBytes: uint64(c.src.bytes),
		Mask: depth - 1, Lap: uint32(bits.TrailingZeros32(depth)),
		Channel: uint32(c.number), Peer: uint32(c.Peer()), Dst: uint32(c.dst.number), Src: uint32(c.src.number),
	}
	if len(c.rails) == 1 && c.dst.rails[c.home()].Word(0) {
		d.Words = 1
	}
	return d, nil
}

// show tells kernels what has changed, and reports whether anything had.
func (l *line) show() (some bool) {
	if v := l.lane.arrived(); v != l.shown && !l.failed {
		l.arrived.Store(v)
		l.shown, some = v, true
	}
	if !l.failed && l.lane.failed.Load() != nil {
		l.failed, some = true, true
		l.arrived.Store(l.shown | shut)
		l.flushed.Store(l.flushed.Load() | shut)
	}
	return some
}

// Close gives the ring's memory back. What kernels pushed and did not flush may have been posted or not.
func (k *Kernels) Close() error {
	x := k.proxy
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	x.call(func() { x.forget(k) })
	return k.free()
}

func (k *Kernels) free() (err error) {
	if k.memory != nil {
		err = k.memory.Close()
	}
	return errors.Join(err, k.host.Close())
}

// forget takes a ring out, and what came from it.
func (x *Proxy) forget(k *Kernels) {
	x.rings = remove(x.rings, k.ring)
	x.kernels = remove(x.kernels, k)
	for _, l := range x.active {
		kept := l.flushes[:0]
		for _, f := range l.flushes {
			if f.ring != k.ring {
				kept = append(kept, f)
			}
		}
		l.flushes = kept
		for i := range l.length {
			if t := &l.queue[(l.first+i)%laneDepth]; t.ring == k.ring {
				t.op &^= opFlush // nobody waits for it any more
			}
		}
	}
}

func remove[T comparable](all []T, gone T) []T {
	kept := all[:0]
	for _, v := range all {
		if v != gone {
			kept = append(kept, v)
		}
	}
	return kept
}

//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/refusal"
	"github.com/weftgo/weft/port/service"
)

// portService is the object of a weft_port.
type portService struct {
	comm    *comm
	service *service.Service
	ops     sync.Mutex
	name    *C.char // of the provider
}

// portMemory is the object of a weft_port_memory.
type portMemory struct {
	port   *portService
	memory *service.Memory
}

// portChannel is the object of a weft_port_channel.
type portChannel struct {
	port    *portService
	channel *service.Channel
	alone   sync.Mutex   // the handle's gate: see onChannel
	life    sync.RWMutex // read-locked by calls, of which there may be several
}

var (
	ports        = handle.NewTable[portService](handle.Port)
	portMemories = handle.NewTable[portMemory](handle.PortMemory)
	portChannels = handle.NewTable[portChannel](handle.PortChannel)
)

func (x *portService) owner() *comm { return x.comm }
func (m *portMemory) owner() *comm  { return m.port.comm }
func (c *portChannel) owner() *comm { return c.port.comm }

// forget removes the handle, and those of what was made of it.
func (x *portService) forget(id uint64) {
	for id, m := range portMemories.All() {
		if m.port == x {
			portMemories.Remove(id)
		}
	}
	for id, c := range portChannels.All() {
		if c.port == x {
			portChannels.Remove(id)
		}
	}
	ports.Remove(id)
}

//export goweft_port_create
func goweft_port_create(id C.uint64_t, options *C.weft_port_options, out *C.weft_port, ms C.int64_t) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_port"); err != nil {
			return err
		}
		var o service.Options
		if options != nil {
			v, err := input(options, "weft_port_options")
			if err != nil {
				return err
			}
			o = service.Options{
				Provider: C.GoString(v.provider), Sources: list(v.sources), Channels: int(v.channels), Depth: int(v.depth),
				Spread: int(v.spread), Spin: time.Duration(v.spin_us) * time.Microsecond,
			}
		}
		s, err := service.New(ctx, c.weft, o)
		if err != nil {
			return err
		}
		x := &portService{comm: c, service: s, name: named("")}
		if f, ok := s.Fabric(); ok {
			x.name = named(f.Provider)
		}
		return own(ports, x, &x.ops, unsafe.Pointer(out), s)
	})
}

//export goweft_port_get
func goweft_port_get(id C.uint64_t, info *C.weft_port_info) C.int {
	return run(ports, id, func(x *portService) error {
		if err := output(info, "weft_port_info"); err != nil {
			return err
		}
		fill(info, C.weft_port_info{
			provider: x.name, channels: C.int64_t(x.service.Channels()), rails: C.int32_t(x.service.Rails()),
		})
		return nil
	})
}

//export goweft_port_destroy
func goweft_port_destroy(id C.uint64_t) C.int {
	return run(ports, id, func(x *portService) error {
		for _, c := range portChannels.All() {
			if c.port != x {
				continue
			}
			if !c.life.TryLock() {
				return fmt.Errorf("%w: another thread is inside a call on a %s of this %s", handle.ErrBusy, handle.PortChannel,
					handle.Port)
			}
			defer c.life.Unlock()
		}
		err := x.service.Close()
		if !errors.Is(err, weft.ErrTimeout) {
			x.forget(uint64(id))
		}
		return err
	})
}

// making is run for calls on a port that ranks make together, and that may be refused by the thread: see weft_refuse.
func making(id C.uint64_t, ms C.int64_t, f func(context.Context, *portService) error) C.int {
	why := refused()
	return run(ports, id, func(x *portService) error {
		return limited(ms, func(ctx context.Context) error {
			return patiently(refusal.With(ctx, why), func(ctx context.Context, _ func(func())) error { return f(ctx, x) })
		})
	})
}

//export goweft_port_memory_create
func goweft_port_memory_create(id C.uint64_t, memory unsafe.Pointer, bytes C.size_t, out *C.weft_port_memory,
	ms C.int64_t,
) C.int {
	return making(id, ms, func(ctx context.Context, x *portService) error {
		if err := result(unsafe.Pointer(out), "weft_port_memory"); err != nil {
			return err
		}
		mine, err := bytesOf(memory, bytes)
		if err != nil {
			ctx = refusal.With(ctx, cmp.Or(refusal.Of(ctx), err))
		}
		m, err := x.service.Register(ctx, mine)
		if err != nil {
			return err
		}
		return own(portMemories, &portMemory{x, m}, &x.ops, unsafe.Pointer(out), m)
	})
}

// alone is run for calls on a port that are local.
func alone(id C.uint64_t, made unsafe.Pointer, f func(*portService) (*service.Memory, error)) C.int {
	return run(ports, id, func(x *portService) error {
		if err := result(made, "weft_port_memory"); err != nil {
			return err
		}
		m, err := f(x)
		if err != nil {
			return err
		}
		return own(portMemories, &portMemory{x, m}, &x.ops, made, m)
	})
}

//export goweft_port_memory_expose
func goweft_port_memory_expose(id C.uint64_t, memory unsafe.Pointer, bytes C.size_t, out *C.weft_port_memory) C.int {
	return alone(id, unsafe.Pointer(out), func(x *portService) (*service.Memory, error) {
		mine, err := bytesOf(memory, bytes)
		if err != nil {
			return nil, err
		}
		return x.service.Expose(mine)
	})
}

//export goweft_port_memory_card
func goweft_port_memory_card(id C.uint64_t, card unsafe.Pointer, bytes *C.size_t) C.int {
	return run(portMemories, id, func(m *portMemory) error {
		if bytes == nil {
			return invalidf("bytes is NULL; pass the room for the card")
		}
		made, room := m.memory.Card(), *bytes
		*bytes = C.size_t(len(made))
		switch {
		case made == nil:
			return invalidf("the memory is another rank's, whose card this rank has imported")
		case card == nil || room < C.size_t(len(made)):
			return invalidf("a card of %d bytes, and there is room for %d at %p", len(made), room, card)
		}
		copy(unsafe.Slice((*byte)(card), len(made)), made)
		return nil
	})
}

//export goweft_port_memory_import
func goweft_port_memory_import(id C.uint64_t, card unsafe.Pointer, bytes C.size_t, out *C.weft_port_memory) C.int {
	return alone(id, unsafe.Pointer(out), func(x *portService) (*service.Memory, error) {
		theirs, err := bytesOf(card, bytes)
		if err != nil {
			return nil, err
		}
		return x.service.Import(theirs)
	})
}

// bytesOf is memory of the caller's.
func bytesOf(memory unsafe.Pointer, bytes C.size_t) ([]byte, error) {
	if bytes > math.MaxInt || memory == nil && bytes > 0 {
		return nil, invalidf("a memory of %d bytes at %p", bytes, memory)
	}
	return unsafe.Slice((*byte)(memory), int(bytes)), nil
}

//export goweft_port_memory_size
func goweft_port_memory_size(id C.uint64_t, rank C.int, bytes *C.uint64_t) C.int {
	return run(portMemories, id, func(m *portMemory) error {
		if size := m.owner().weft.Size(); rank < 0 || int(rank) >= size || bytes == nil {
			return invalidf("the size of rank %d of %d, to be written to %p", rank, size, bytes)
		}
		*bytes = C.uint64_t(m.memory.Bytes(int(rank)))
		return nil
	})
}

//export goweft_port_memory_destroy
func goweft_port_memory_destroy(id C.uint64_t) C.int {
	return run(portMemories, id, func(m *portMemory) error {
		portMemories.Remove(uint64(id))
		return m.memory.Close()
	})
}

// memoriesOf finds memories by their handles.
func memoriesOf(dst, src C.uint64_t) (to, from *service.Memory, err error) {
	d, err := portMemories.Get(uint64(dst))
	if err != nil {
		return nil, nil, err
	}
	s, err := portMemories.Get(uint64(src))
	if err != nil {
		return nil, nil, err
	}
	return d.memory, s.memory, nil
}

func channelOptions(options *C.weft_port_channel_options) (o service.ChannelOptions, err error) {
	if options == nil {
		return o, nil
	}
	v, err := input(options, "weft_port_channel_options")
	if err != nil {
		return o, err
	}
	if v.kind < 0 || v.kind > math.MaxUint8 {
		v.kind = math.MaxUint8 // which is none either
	}
	return service.ChannelOptions{Kind: service.Kind(v.kind), Spread: v.spread != 0}, nil
}

// makes is how a service makes a channel, from this rank's part of a memory to the peer's of another.
type makes func(o service.ChannelOptions, to, from *service.Memory) (*service.Channel, error)

// add makes a channel, and its handle.
func (x *portService) add(options *C.weft_port_channel_options, dst, src C.uint64_t, out *C.weft_port_channel,
	channel makes,
) error {
	if err := result(unsafe.Pointer(out), "weft_port_channel"); err != nil {
		return err
	}
	o, err := channelOptions(options)
	if err != nil {
		return err
	}
	to, from, err := memoriesOf(dst, src)
	if err != nil {
		return err
	}
	c, err := channel(o, to, from)
	if err != nil {
		return err
	}
	made := &portChannel{port: x, channel: c}
	return add(portChannels, made, &made.alone, unsafe.Pointer(out))
}

//export goweft_port_connect
func goweft_port_connect(id C.uint64_t, peer C.int, options *C.weft_port_channel_options, dst, src C.uint64_t,
	out *C.weft_port_channel, ms C.int64_t,
) C.int {
	return making(id, ms, func(ctx context.Context, x *portService) error {
		return x.add(options, dst, src, out, func(o service.ChannelOptions, to, from *service.Memory,
		) (*service.Channel, error) {
			return x.service.Connect(ctx, int(peer), o, to, from)
		})
	})
}

//export goweft_port_open
func goweft_port_open(id C.uint64_t, peer, number C.int, options *C.weft_port_channel_options, dst, src C.uint64_t,
	out *C.weft_port_channel,
) C.int {
	return run(ports, id, func(x *portService) error {
		return x.add(options, dst, src, out, func(o service.ChannelOptions, to, from *service.Memory,
		) (*service.Channel, error) {
			return x.service.Open(int(peer), int(number), o, to, from)
		})
	})
}

// onChannel runs f on a channel, beside other threads that do.
func onChannel(id C.uint64_t, f func(*portChannel) error) C.int {
	return local(func() error {
		c, err := portChannels.Get(uint64(id))
		switch {
		case err != nil:
			return err
		case !c.life.TryRLock():
			return fmt.Errorf("%w: another thread is destroying this %s, or what it was made from", handle.ErrBusy,
				handle.PortChannel)
		}
		defer c.life.RUnlock()
		if _, err := portChannels.Get(uint64(id)); err != nil { // it went before the lock was ours
			return err
		}
		return f(c)
	})
}

//export goweft_port_channel_with
func goweft_port_channel_with(id, dst, src C.uint64_t, out *C.weft_port_channel) C.int {
	return onChannel(id, func(c *portChannel) error {
		if err := result(unsafe.Pointer(out), "weft_port_channel"); err != nil {
			return err
		}
		to, from, err := memoriesOf(dst, src)
		if err != nil {
			return err
		}
		other, err := c.channel.With(to, from)
		if err != nil {
			return err
		}
		made := &portChannel{port: c.port, channel: other}
		return add(portChannels, made, &made.alone, unsafe.Pointer(out))
	})
}

// The kinds have the numbers that they have in Go.
var _ = [1]int{}[C.WEFT_PORT_AUTO-C.int(service.Auto)+C.WEFT_PORT_MEMORY-C.int(service.MemoryChannel)+
	C.WEFT_PORT_FABRIC-C.int(service.PortChannel)]

//export goweft_port_channel_get
func goweft_port_channel_get(id C.uint64_t, info *C.weft_port_channel_info) C.int {
	return onChannel(id, func(c *portChannel) error {
		if err := output(info, "weft_port_channel_info"); err != nil {
			return err
		}
		dst, src := c.channel.Bytes()
		fill(info, C.weft_port_channel_info{
			peer: C.int32_t(c.channel.Peer()), kind: C.int32_t(c.channel.Kind()), dst_bytes: C.uint64_t(dst),
			src_bytes: C.uint64_t(src),
		})
		return nil
	})
}

//export goweft_port_channel_error
func goweft_port_channel_error(id C.uint64_t) C.int {
	return onChannel(id, func(c *portChannel) error { return c.channel.Err() })
}

//export goweft_port_channel_destroy
func goweft_port_channel_destroy(id C.uint64_t) C.int {
	return local(func() error {
		c, err := portChannels.Get(uint64(id))
		switch {
		case err != nil:
			return err
		case !c.life.TryLock():
			return fmt.Errorf("%w: another thread is inside a call on this %s", handle.ErrBusy, handle.PortChannel)
		}
		defer c.life.Unlock()
		if !portChannels.Remove(uint64(id)) {
			_, err = portChannels.Get(uint64(id))
		}
		return err
	})
}

// waiting is onChannel for calls that may wait.
func waiting(id C.uint64_t, ms C.int64_t, f func(context.Context, *service.Channel) error) C.int {
	return onChannel(id, func(c *portChannel) error {
		return within(ms, func(ctx context.Context) error { return f(ctx, c.channel) })
	})
}

// putting is waiting for puts. Numbers that Go's have no room for are refused as they were given.
func putting(id, dst, src, bytes C.uint64_t, ms C.int64_t,
	put func(c *service.Channel, ctx context.Context, dst, src, n int) error,
) C.int {
	return waiting(id, ms, func(ctx context.Context, c *service.Channel) error {
		if max(dst, src, bytes) > math.MaxInt {
			return weft.Invalidf("port put to rank %d: %d bytes from %d to %d: no memory has as many", c.Peer(), uint64(bytes),
				uint64(src), uint64(dst))
		}
		return put(c, ctx, int(dst), int(src), int(bytes))
	})
}

//export goweft_port_put
func goweft_port_put(id, dst, src, bytes C.uint64_t, ms C.int64_t) C.int {
	return putting(id, dst, src, bytes, ms, (*service.Channel).Put)
}

//export goweft_port_signal
func goweft_port_signal(id C.uint64_t, ms C.int64_t) C.int {
	return waiting(id, ms, func(ctx context.Context, c *service.Channel) error { return c.Signal(ctx) })
}

//export goweft_port_put_with_signal
func goweft_port_put_with_signal(id, dst, src, bytes C.uint64_t, ms C.int64_t) C.int {
	return putting(id, dst, src, bytes, ms, (*service.Channel).PutWithSignal)
}

//export goweft_port_put_with_signal_and_flush
func goweft_port_put_with_signal_and_flush(id, dst, src, bytes C.uint64_t, ms C.int64_t) C.int {
	return putting(id, dst, src, bytes, ms, (*service.Channel).PutWithSignalAndFlush)
}

//export goweft_port_flush
func goweft_port_flush(id C.uint64_t, ms C.int64_t) C.int {
	return waiting(id, ms, func(ctx context.Context, c *service.Channel) error { return c.Flush(ctx) })
}

//export goweft_port_atomic_add
func goweft_port_atomic_add(id, dst, value C.uint64_t, ms C.int64_t) C.int {
	return waiting(id, ms, func(ctx context.Context, c *service.Channel) error {
		if dst > math.MaxInt {
			return weft.Invalidf("port add to rank %d: offset %d: no memory is as long", c.Peer(), uint64(dst))
		}
		return c.AtomicAdd(ctx, int(dst), uint64(value))
	})
}

//export goweft_port_poll
func goweft_port_poll(id C.uint64_t, consumed *C.int) C.int {
	return onChannel(id, func(c *portChannel) error {
		if consumed == nil {
			return invalidf("consumed is NULL; pass where to write it")
		}
		*consumed = 0
		if c.channel.Poll() {
			*consumed = 1
			return nil
		}
		return c.channel.Err()
	})
}

//export goweft_port_wait
func goweft_port_wait(id C.uint64_t, ms C.int64_t) C.int {
	return waiting(id, ms, func(ctx context.Context, c *service.Channel) error { return c.Wait(ctx) })
}

// The length of the struct is in the header.
var _ = [1]int{}[C.WEFT_PORT_KERNEL_BYTES-unsafe.Sizeof(device.PortChannel{})]

//export goweft_port_kernel
func goweft_port_kernel(id C.uint64_t, kernel unsafe.Pointer, bytes C.size_t) C.int {
	return onChannel(id, func(c *portChannel) error {
		if kernel == nil || bytes < C.WEFT_PORT_KERNEL_BYTES {
			return invalidf("a channel of kernels has %d bytes: want memory for them, not %d bytes at %p",
				C.WEFT_PORT_KERNEL_BYTES, bytes, kernel)
		}
		if d := c.owner().weft.Device(); d != nil {
			defer keepContext(d.Context())()
		}
		k, err := c.channel.Kernel()
		if err == nil {
			*(*device.PortChannel)(kernel) = k
		}
		return err
	})
}

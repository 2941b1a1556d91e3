package channel

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Channel is a way to one peer's memory, and the signals between the two, whatever carries them: a [Memory] channel
// where ranks map each other's memory, and the Channel of package port where they do not.
//
// What is called on a Channel takes effect in that order, as far as the peer can tell: whoever has waited for a
// signal sees all that was put and added before it. What lies outside of the memories is refused before anything
// is put.
type Channel interface {
	// Peer is the rank to which the channel leads.
	Peer() int
	// Put copies n bytes at src of this rank's memory to dst of the peer's. They must stay as they are until a
	// Flush.
	Put(ctx context.Context, dst, src, n int) error
	// Signal raises the count of signals that the peer waits for by one.
	Signal(ctx context.Context) error
	// PutWithSignal is Put and Signal.
	PutWithSignal(ctx context.Context, dst, src, n int) error
	// PutWithSignalAndFlush is Put, Signal and Flush.
	PutWithSignalAndFlush(ctx context.Context, dst, src, n int) error
	// Flush returns when the sources of what was put may change, and adds have taken effect.
	Flush(ctx context.Context) error
	// AtomicAdd adds to a 64-bit word at dst of the peer's memory, at an address that is a multiple of 8.
	AtomicAdd(ctx context.Context, dst int, value uint64) error
	// Poll consumes a signal of the peer, if there is one.
	Poll() bool
	// Wait consumes a signal of the peer, and blocks until there is one. A failed Wait consumes nothing.
	Wait(ctx context.Context) error
}

// Channel is the memory channel as a [Channel]. A put is over when it returns, and needs no flush.
func (m *Memory) Channel() Channel { return mapped{m} }

// mapped implements Channel.
type mapped struct{ memory *Memory }

func (m mapped) Peer() int { return m.memory.peer }

func (m mapped) Put(_ context.Context, dst, src, n int) error { return m.memory.Put(dst, src, n) }

func (m mapped) Signal(context.Context) error {
	m.memory.Signal()
	return nil
}

func (m mapped) PutWithSignal(_ context.Context, dst, src, n int) error {
	return m.memory.PutWithSignal(dst, src, n)
}

func (m mapped) PutWithSignalAndFlush(_ context.Context, dst, src, n int) error {
	return m.memory.PutWithSignal(dst, src, n)
}

func (m mapped) Flush(context.Context) error { return nil }

func (m mapped) AtomicAdd(_ context.Context, dst int, value uint64) error {
	to := m.memory.remote
	if err := within("add to", to, dst, 8); err != nil {
		return err
	}
	word := unsafe.Pointer(&to[dst])
	if uintptr(word)%8 != 0 {
		return fmt.Errorf("add to %d: the word's address must be a multiple of 8", dst)
	}
	release(word)
	(*atomic.Uint64)(word).Add(value)
	return nil
}

func (m mapped) Poll() bool { return m.memory.Poll() }

func (m mapped) Wait(ctx context.Context) error { return m.memory.Wait(ctx) }

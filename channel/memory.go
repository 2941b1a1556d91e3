package channel

import (
	"context"
	"fmt"
)

// Memory is a memory channel: two ranks that map each other's memory, and the Semaphore that says
// when data may be read. A put is a plain copy into the peer's memory; it is seen by the peer after
// the next Signal.
type Memory struct {
	*Semaphore
	local, remote []byte
}

// NewMemory makes a channel from this rank's segment of a window, the peer's segment and a Semaphore
// between the two.
func NewMemory(s *Semaphore, local, remote []byte) *Memory {
	return &Memory{Semaphore: s, local: local, remote: remote}
}

// Put copies n bytes from local memory at src to the peer's memory at dst. Any alignment and any n,
// zero too.
func (m *Memory) Put(dst, src, n int) error {
	if err := within("put to", m.remote, dst, n); err != nil {
		return err
	}
	if err := within("put from", m.local, src, n); err != nil {
		return err
	}
	copy(m.remote[dst:dst+n], m.local[src:src+n])
	return nil
}

// Get copies n bytes from the peer's memory at src to local memory at dst. The peer's data must
// have been signalled.
func (m *Memory) Get(dst, src, n int) error {
	if err := m.checkGet(dst, src, n); err != nil {
		return err
	}
	copy(m.local[dst:dst+n], m.remote[src:src+n])
	return nil
}

// PutWithSignal is Put followed by Signal.
func (m *Memory) PutWithSignal(dst, src, n int) error {
	if err := m.Put(dst, src, n); err != nil {
		return err
	}
	m.Signal()
	return nil
}

// Send puts caller's bytes, which need not lie in the window, at dst in the peer's memory.
func (m *Memory) Send(dst int, data []byte) error {
	if err := within("send to", m.remote, dst, len(data)); err != nil {
		return err
	}
	copy(m.remote[dst:], data)
	return nil
}

// WaitGet waits for a signal and then gets. It consumes the signal only if it succeeds.
func (m *Memory) WaitGet(ctx context.Context, dst, src, n int) error {
	if err := m.checkGet(dst, src, n); err != nil {
		return err
	}
	if err := m.Wait(ctx); err != nil {
		return err
	}
	return m.Get(dst, src, n)
}

func (m *Memory) checkGet(dst, src, n int) error {
	if err := within("get to", m.local, dst, n); err != nil {
		return err
	}
	return within("get from", m.remote, src, n)
}

func within(what string, mem []byte, off, n int) error {
	if off < 0 || n < 0 || off > len(mem) || n > len(mem)-off {
		return fmt.Errorf("%s [%d, %d+%d): outside the %d bytes of the window", what, off, off, n, len(mem))
	}
	return nil
}

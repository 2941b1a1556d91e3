package fabrictest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/libfabric"
	"github.com/weftgo/weft/fabric/internal/provider"
)

// A Stranger is an endpoint of libfabric that belongs to no job, and knows nothing of one but a port.
type Stranger struct {
	Provider string         // of libfabric, the one that listens at the port
	Port     netip.AddrPort // of IPv4
}

// Write writes 8 bytes to an offset of whatever region has a key, with data for the queue. It returns nil if they have
// landed. An address that does not answer is an error when the context ends.
func (s Stranger) Write(ctx context.Context, key uint64, at int, data uint64) (err error) {
	library, err := libfabric.Open()
	if err != nil {
		return err
	}
	e, err := library.OpenEndpoint(libfabric.Config{Provider: s.Provider, Source: s.Port.Addr().String(), Peers: 1})
	if err != nil {
		return err
	}
	memory := make([]byte, 8)
	for i := range memory {
		memory[i] = 0xee
	}
	pinner := new(runtime.Pinner)
	pinner.Pin(unsafe.SliceData(memory))
	defer pinner.Unpin()
	defer func() { err = errors.Join(err, e.Close()) }()
	local, err := e.Register(memory, 1)
	if err != nil {
		return err
	}
	name, err := e.Name()
	if err != nil {
		return err
	}
	if len(name) < 8 { // struct sockaddr_in: family, port, address
		return fmt.Errorf("the name of an endpoint is % x", name)
	}
	binary.BigEndian.PutUint16(name[2:], s.Port.Port())
	to, err := e.Insert(name)
	if err != nil {
		return err
	}
	post := &provider.Post{
		From: unsafe.Pointer(unsafe.SliceData(memory)), Local: local, Bytes: len(memory), To: to, Key: key,
		Remote: uint64(at), Data: data, HasData: true,
	}
	into := make([]provider.Completion, 4)
	for posted := false; ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
		if !posted {
			if err := e.Write(post); err == nil {
				posted = true
			} else if !errors.Is(err, provider.ErrAgain) {
				return err
			}
		}
		n, err := e.Poll(into)
		if err != nil {
			return err
		}
		for _, c := range into[:n] {
			if !c.Arrived {
				return c.Err
			}
		}
	}
	return context.Cause(ctx)
}

// Guess writes with each of the keys that domains would have if they counted, and says which of them landed.
func (s Stranger) Guess(ctx context.Context) (landed []uint64) {
	var keys []uint64
	for serial := uint64(1); serial <= 3; serial++ {
		keys = append(keys, serial, 1<<32|serial)
	}
	for _, key := range keys {
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		if s.Write(within, key, 0, 0) == nil {
			landed = append(landed, key)
		}
		cancel()
	}
	return landed
}

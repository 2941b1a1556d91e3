package fabric

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// Region is memory of this rank that peers may write to, and that this rank may write from.
type Region struct {
	d       *Domain
	memory  []byte // of a GPU, if device says so: the host touches none of it
	device  *DeviceMemory
	pinner  runtime.Pinner
	granted provider.Memory // under the domain's lock, as is the rest
	closed  bool
}

// Register lets peers write into memory, which stays the caller's. The epoch becomes part of the key
// where the owner picks keys: see [Region.Renew].
func (d *Domain) Register(memory []byte, epoch uint32) (*Region, error) {
	if len(memory) == 0 {
		return nil, invalid("register: the memory is empty")
	}
	r := &Region{d: d, memory: memory}
	r.pinner.Pin(unsafe.SliceData(memory))
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failed(); err != nil {
		r.pinner.Unpin()
		return nil, fmt.Errorf("register: %w", err)
	}
	if err := r.grant(epoch); err != nil {
		r.pinner.Unpin()
		return nil, err
	}
	return r, nil
}

// DeviceMemory is memory of a GPU.
type DeviceMemory struct {
	Address uintptr // in the address space that the host and its GPUs share
	Bytes   int
	GPU     int // its number for CUDA
	// DMABuf is a dma-buf that has the memory from Offset on. It is read by RegisterDevice alone. Without one the
	// provider finds the memory by its address, which takes a module of the kernel (nvidia_peermem).
	DMABuf *os.File
	Offset int
}

// RegisterDevice is Register of memory of a GPU, where [Capabilities].Devices says that the endpoint reaches such.
// Peers add to no words of it. It has one key, for good: a region that is needed again is registered anew.
//
// A completed write says that its bytes are on their way to the GPU; work of the GPU sees them after a flush
// (cuda.Context.FlushRDMA), unless the GPU orders them.
func (d *Domain) RegisterDevice(memory DeviceMemory, epoch uint32) (*Region, error) {
	switch {
	case memory.Bytes <= 0 || memory.Address == 0 || memory.Offset < 0:
		return nil, invalid("register: %d bytes of a GPU at %#x", memory.Bytes, memory.Address)
	case !d.caps.Devices:
		return nil, unsupported("provider %s reaches no memory of GPUs: register pinned memory of the host", d.caps.Provider)
	case memory.DMABuf != nil && !d.caps.DMABufs:
		return nil, unsupported("provider %s takes no dma-bufs: leave it out", d.caps.Provider)
	}
	r := &Region{d: d, memory: foreign(memory.Address, memory.Bytes), device: &memory}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failed(); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	err := r.grant(epoch)
	memory.DMABuf = nil
	if err != nil {
		return nil, err
	}
	return r, nil
}

// foreign is memory at an address that is not Go's.
func foreign(address uintptr, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), n)
}

func (r *Region) grant(epoch uint32) error {
	granted, err := r.register(r.d.keys.next(epoch))
	if err != nil {
		return fmt.Errorf("register %d bytes: %w", len(r.memory), err)
	}
	r.granted = granted
	r.d.regions[granted.Key()] = r
	return nil
}

func (r *Region) register(key uint64) (provider.Memory, error) {
	if r.device == nil {
		return r.d.endpoint.Register(r.memory, key)
	}
	of, ok := r.d.endpoint.(provider.DeviceEndpoint)
	if !ok {
		return nil, unsupported("provider %s reaches no memory of GPUs", r.d.caps.Provider)
	}
	m := provider.DeviceMemory{
		Address: r.device.Address, Bytes: r.device.Bytes, GPU: r.device.GPU, Offset: r.device.Offset, DMABuf: -1,
	}
	if r.device.DMABuf == nil {
		return of.RegisterDevice(m, key)
	}
	raw, err := r.device.DMABuf.SyscallConn()
	if err != nil {
		return nil, err
	}
	var granted provider.Memory
	var failed error
	err = raw.Control(func(fd uintptr) { // unlike Fd it leaves the file as it is
		m.DMABuf = int(fd)
		granted, failed = of.RegisterDevice(m, key)
	})
	return granted, errors.Join(err, failed)
}

func (r *Region) revoke() error {
	delete(r.d.regions, r.granted.Key())
	return r.granted.Close()
}

// Renew takes the key back and makes one of the next epoch. Afterwards writes that begin with the old
// key fail, so the memory may be used anew; peers need the new [Region.Card]. A write whose bytes are
// on their way already may still land, unless [Peer.Close] has ended its connection: Renew comes after
// it.
func (r *Region) Renew(epoch uint32) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if err := r.usable(); err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	if r.device != nil {
		return unsupported("renew: memory of a GPU has one key: close the region and register it anew")
	}
	err := r.revoke()
	if err == nil {
		err = r.grant(epoch)
	}
	if err != nil {
		r.drop()
		return fmt.Errorf("renew: %w", err)
	}
	return nil
}

// Close takes the key back. The memory must stay as it is until [Peer.Flush] has returned for what was
// written from it.
func (r *Region) Close() error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if r.usable() != nil {
		return nil
	}
	defer r.drop()
	return r.revoke()
}

// drop lets go of memory whose key is gone.
func (r *Region) drop() {
	r.closed = true
	r.pinner.Unpin()
}

func (r *Region) usable() error {
	if err := r.d.failed(); err != nil {
		return err
	}
	if r.closed {
		return ErrClosed
	}
	return nil
}

// Card is what peers need to write to this region. A bootstrap carries it to them.
func (r *Region) Card() []byte {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	return regionCard{
		Rank: uint32(r.d.options.Rank), Base: r.granted.Base(), Key: r.granted.Key(), Length: uint64(len(r.memory)),
		Aligned: r.device == nil && uintptr(unsafe.Pointer(unsafe.SliceData(r.memory)))%wordSize == 0,
	}.encode()
}

// Remote is a peer's region as this rank knows it.
type Remote struct {
	rank      int
	base, key uint64
	length    uint64
	aligned   bool
}

// Bytes is the region's length.
func (r Remote) Bytes() int { return int(r.length) }

// Word says whether the region has a word to add to at an offset.
func (r Remote) Word(offset int) bool {
	return offset%wordSize == 0 && r.aligned && r.Holds(offset, wordSize)
}

// Holds says whether n bytes at an offset lie in the region.
func (r Remote) Holds(offset, n int) bool {
	return offset >= 0 && n >= 0 && uint64(offset) <= r.length && uint64(n) <= r.length-uint64(offset)
}

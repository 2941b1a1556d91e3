package ibgda

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/weftgo/weft/cuda"
)

// pages are those of a library's memory that the GPU has been given. Queue pairs share some: a page has records and
// registers of many.
type pages struct {
	context *cuda.Context
	held    map[uintptr]*held // by the first byte
}

type held struct {
	memory *cuda.HostMemory
	users  int
}

// hold gives the GPU the pages around some bytes, and says where the pages begin, and where the GPU finds the bytes.
func (p *pages) hold(at uintptr, size int, registers bool) (first uintptr, gpu cuda.Pointer, err error) {
	page := uintptr(os.Getpagesize())
	first = at &^ (page - 1)
	length := int((at+uintptr(size)+page-1)&^(page-1) - first)
	h := p.held[first]
	if h == nil {
		memory, err := p.context.RegisterHost(foreign(first, length), cuda.HostOptions{IOMemory: registers})
		if err != nil && registers {
			return 0, 0, fmt.Errorf("the GPU cannot be given the doorbell: load NVIDIA's kernel module with "+
				"NVreg_RegistryDwords=\"PeerMappingOverride=1;\": %w", err)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("the GPU cannot be given a queue of %d bytes: %w", length, err)
		}
		h = &held{memory: memory}
		p.held[first] = h
	} else if h.memory.Size() < length {
		return 0, 0, fmt.Errorf("the GPU has %d bytes of a queue of %d at %#x", h.memory.Size(), length, first)
	}
	h.users++
	return first, h.memory.Pointer().Add(int(at - first)), nil
}

// release takes pages from the GPU when nothing else holds them.
func (p *pages) release(first uintptr) error {
	h := p.held[first]
	if h.users--; h.users > 0 {
		return nil
	}
	delete(p.held, first)
	return h.memory.Close()
}

// foreign is memory that is not Go's.
func foreign(address uintptr, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), n)
}

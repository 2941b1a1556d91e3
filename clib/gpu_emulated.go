//go:build cgo && linux && emulated

package main

// #include <stddef.h>
import "C"

import (
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
)

// emulatedGPUs is the number of GPUs of a library that tests build with the tag emulated, and
// emulatedSMs that of each one's SMs: ranks are then threads, and device memory is the process's, so
// arrays of the host stand for arrays on GPUs.
const emulatedGPUs, emulatedSMs = 4, 32

type emulated struct {
	driver *cuda.Driver
	cache  *kernel.Cache
}

var machine = sync.OnceValues(func() (*emulated, error) {
	m := emulate.New(cudatest.Config{
		Devices: emulatedGPUs, Pageable: true, Unified: true,
		Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: emulatedSMs},
	}, emulate.Options{})
	driver, err := m.Open()
	if err != nil {
		return nil, err
	}
	cache, err := emulate.Cache()
	if err != nil {
		return nil, err
	}
	return &emulated{driver, cache}, nil
})

// primary is the context of an emulated GPU, which programs of tests have memory and streams of.
func primary(number int) (*cuda.Context, error) {
	m, err := machine()
	if err != nil {
		return nil, err
	}
	device, err := m.driver.Device(number)
	if err != nil {
		return nil, err
	}
	return device.Primary()
}

// weft_emulated_alloc gives device memory of an emulated GPU, which stays, or NULL.
//
//export weft_emulated_alloc
func weft_emulated_alloc(gpu C.int, bytes C.size_t) unsafe.Pointer {
	c, err := primary(int(gpu))
	if err != nil {
		return nil
	}
	memory, err := c.Alloc(int(bytes))
	if err != nil {
		return nil
	}
	return address(uintptr(memory.Pointer()))
}

// weft_emulated_stream gives a stream of an emulated GPU, which stays, or NULL.
//
//export weft_emulated_stream
func weft_emulated_stream(gpu C.int) unsafe.Pointer {
	c, err := primary(int(gpu))
	if err != nil {
		return nil
	}
	s, err := c.NewStream(cuda.StreamOptions{})
	if err != nil {
		return nil
	}
	return address(s.Handle())
}

// address makes C's pointer of a number, which is no address of Go's.
func address(n uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&n)) }

// onGPU binds a rank to an emulated GPU.
func onGPU(number int) ([]weft.Option, *cuda.Context, error) {
	m, err := machine()
	if err != nil {
		return nil, nil, err
	}
	own, err := primary(number) // as long as the process lives
	if err != nil {
		return nil, nil, err
	}
	context, err := primary(number)
	if err != nil {
		return nil, nil, err
	}
	return []weft.Option{weft.WithDevice(own), weft.WithKernels(m.cache)}, context, nil
}

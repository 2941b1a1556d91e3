//go:build cgo && linux && emulated

package main

import (
	"os"
	"sync"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
)

// emulatedGPUs is how many a library has that tests build with the tag emulated: ranks are threads then, and device memory is the process's,
// so that arrays of the host's stand for arrays on GPUs.
const emulatedGPUs = 4

type emulated struct {
	driver *cuda.Driver
	cache  *kernel.Cache
}

var machine = sync.OnceValues(func() (*emulated, error) {
	m := cudatest.New(cudatest.Config{Devices: emulatedGPUs, Pageable: true, Unified: true})
	emulate.Attach(m, emulate.Options{Limit: time.Minute})
	driver, err := m.Open()
	if err != nil {
		return nil, err
	}
	dir := os.Getenv("WEFT_EMULATED_KERNELS")
	if dir == "" {
		if dir, err = os.MkdirTemp("", "weft-emulated-"); err != nil {
			return nil, err
		}
	}
	return &emulated{driver, kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: dir, ReadOnly: []string{}})}, nil
})

// onGPU binds a rank to an emulated GPU.
func onGPU(number int) ([]weft.Option, *cuda.Context, error) {
	m, err := machine()
	if err != nil {
		return nil, nil, err
	}
	device, err := m.driver.Device(number)
	if err != nil {
		return nil, nil, err
	}
	primary, err := device.Primary()
	if err != nil {
		return nil, nil, err
	}
	own, err := device.Primary() // as long as the process lives
	if err != nil {
		return nil, nil, err
	}
	return []weft.Option{weft.WithDevice(own), weft.WithKernels(m.cache)}, primary, nil
}

//go:build cgo && linux && !emulated

package main

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// onGPU binds a rank to a GPU of the machine's. The context is nil where the GPU cannot be had,
// which joining says better.
func onGPU(number int) ([]weft.Option, *cuda.Context, error) {
	return []weft.Option{weft.WithGPU(number)}, contextOf(number), nil
}

func contextOf(number int) *cuda.Context {
	driver, err := cuda.Open()
	if err != nil {
		return nil
	}
	device, err := driver.Device(number)
	if err != nil {
		return nil
	}
	c, err := device.Primary()
	if err != nil {
		return nil
	}
	return c
}

//go:build cgo && linux && !emulated

package main

import "github.com/weftgo/weft"

// onGPU binds a rank to a GPU of the machine's.
func onGPU(number int) ([]weft.Option, error) { return []weft.Option{weft.WithGPU(number)}, nil }

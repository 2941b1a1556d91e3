//go:build !amd64

package simd

func detect() isa { return portable }

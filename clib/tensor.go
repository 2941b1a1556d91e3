//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/weftgo/weft"
)

// tensors keeps the last tensors that an object was given, by place: those of the next call are mostly much the same. Shapes need not be allocated
// again then, and what holds on to a tensor keeps the shape that it got. Nor is a tensor copied that was written a moment ago, for which processors wait.
type tensors [16]weft.Tensor

var absent weft.Tensor

// at is a tensor of C's as Go has it, to be copied before the next call.
func (s *tensors) at(place int, p *C.weft_tensor, name string) (*weft.Tensor, error) {
	if p == nil {
		return &absent, nil
	}
	p, err := input(p, sizeTensor, name)
	if err != nil || p.dtype == C.WEFT_NONE {
		return &absent, err
	}
	if p.dtype < 0 || p.dtype > C.WEFT_UINT64 || p.dims < 0 || p.dims > C.WEFT_MAX_DIMS {
		return &absent, invalidf("the %s: type %d and %d dimensions, want a weft_dtype and 0 to %d", name, p.dtype, p.dims, C.WEFT_MAX_DIMS)
	}
	t := &s[place]
	shape := (*[C.WEFT_MAX_DIMS]int)(unsafe.Pointer(&p.shape))[:p.dims]
	if t.Shape == nil || !slices.Equal(t.Shape, shape) {
		own := slices.Clone(shape)
		if !addressable(own) {
			return &absent, invalidf("the %s: shape %v", name, own)
		}
		t.Shape = own
	}
	if d := weft.DType(p.dtype); t.DType != d {
		t.DType = d
	}
	if t.Data != p.data {
		t.Data = p.data
	}
	if t.Data == nil && t.Elems() > 0 {
		return &absent, invalidf("the %s: %d bytes at NULL", name, t.Bytes())
	}
	return t, nil
}

// pair is two tensors that follow each other.
func (s *tensors) pair(place int, a *C.weft_tensor, nameA string, b *C.weft_tensor, nameB string) (first, second *weft.Tensor, err error) {
	if first, err = s.at(place, a, nameA); err != nil {
		return
	}
	second, err = s.at(place+1, b, nameB)
	return
}

// addressable reports whether the bytes of any type in a shape can be counted.
func addressable(shape []int) bool {
	const largest = 8
	bytes := uint64(largest)
	for _, n := range shape {
		over, low := bits.Mul64(bytes, uint64(n))
		if n < 0 || over != 0 || low > 1<<62 {
			return false
		}
		bytes = low
	}
	return true
}

// tellTensor writes a tensor to a struct of C's that was checked.
func tellTensor(p *C.weft_tensor, t *weft.Tensor) {
	// As a number: it may be memory of Go's, which whoever gives it has pinned.
	*(*uintptr)(unsafe.Pointer(&p.data)) = uintptr(t.Data)
	p.dtype, p.dims = C.int32_t(t.DType), C.int32_t(len(t.Shape))
	for i := range p.shape {
		p.shape[i] = 0
		if i < len(t.Shape) {
			p.shape[i] = C.int64_t(t.Shape[i])
		}
	}
}

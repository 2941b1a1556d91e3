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

// shapes keeps the shapes of an object's last tensors, by place: those of the next call are mostly the same, and need not be allocated again. What
// holds on to a tensor keeps the shape that it got.
type shapes [16][]int

// tensor is a tensor of C's as Go has it.
func (s *shapes) tensor(place int, p *C.weft_tensor, name string) (weft.Tensor, error) {
	if p == nil {
		return weft.Tensor{}, nil
	}
	t, err := input(p, sizeTensor, name)
	if err != nil || t.dtype == C.WEFT_NONE {
		return weft.Tensor{}, err
	}
	if t.dtype < 0 || t.dtype > C.WEFT_UINT64 || t.dims < 0 || t.dims > C.WEFT_MAX_DIMS {
		return weft.Tensor{}, invalidf("the %s: type %d and %d dimensions, want a weft_dtype and 0 to %d", name, t.dtype, t.dims, C.WEFT_MAX_DIMS)
	}
	shape := (*[C.WEFT_MAX_DIMS]int)(unsafe.Pointer(&t.shape))[:t.dims]
	d := weft.DType(t.dtype)
	bytes := uint64(d.Size())
	for _, n := range shape {
		over, low := bits.Mul64(bytes, uint64(n))
		if n < 0 || over != 0 || low > 1<<62 {
			return weft.Tensor{}, invalidf("the %s: shape %v", name, slices.Clone(shape))
		}
		bytes = low
	}
	if t.data == nil && bytes > 0 {
		return weft.Tensor{}, invalidf("the %s: %d bytes at NULL", name, bytes)
	}
	if s[place] == nil || !slices.Equal(s[place], shape) {
		s[place] = append(make([]int, 0, len(shape)), shape...)
	}
	return weft.Tensor{Data: t.data, DType: d, Shape: s[place]}, nil
}

// tellTensor writes a tensor to a struct of C's that was checked.
func tellTensor(p *C.weft_tensor, t weft.Tensor) {
	v := C.weft_tensor{dtype: C.int32_t(t.DType), dims: C.int32_t(len(t.Shape))}
	for i, n := range t.Shape {
		v.shape[i] = C.int64_t(n)
	}
	// As a number: it may be memory of Go's, which whoever gives it has pinned.
	*(*uintptr)(unsafe.Pointer(&v.data)) = uintptr(t.Data)
	fill(p, v)
}

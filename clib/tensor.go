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

// refresh copies a weft_tensor into a tensor. The tensor keeps the values of the last such call,
// which are mostly the same. Its shape then need not be allocated again, and equal values are not
// written, which avoids waits of processors for stores of a moment ago.
func refresh(t *weft.Tensor, p *C.weft_tensor, name string) error {
	if p == nil {
		return forget(t)
	}
	p, err := input(p, name)
	if err != nil {
		return err
	}
	if p.dtype == C.WEFT_NONE {
		return forget(t)
	}
	if p.dtype == C.WEFT_ABSENT && p.data != nil {
		*t = weft.Absent(C.GoString((*C.char)(p.data)))
		return nil
	}
	if p.dtype < 0 || p.dtype > C.WEFT_BOOL {
		return invalidf("the %s: dtype is %d, want a weft_dtype: %s", name, p.dtype, dtypeNames)
	}
	if p.dims < 0 || p.dims > C.WEFT_MAX_DIMS {
		return invalidf("the %s: dims is %d, want 0 to %d", name, p.dims, C.WEFT_MAX_DIMS)
	}
	shape := (*[C.WEFT_MAX_DIMS]int)(unsafe.Pointer(&p.shape))[:p.dims]
	if t.Shape == nil || !slices.Equal(t.Shape, shape) {
		own := slices.Clone(shape)
		if !addressable(own) {
			return invalidf("the %s: shape %v", name, own)
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
		return invalidf("the %s: %d bytes at NULL", name, t.Bytes())
	}
	return nil
}

// dtypeNames are the types in C's names, from 1 on.
const dtypeNames = "WEFT_BFLOAT16, WEFT_FLOAT16, WEFT_FLOAT32, WEFT_FLOAT64, WEFT_FLOAT8_E4M3, WEFT_FLOAT8_E5M2, " +
	"WEFT_UE8M0, WEFT_INT8, WEFT_INT16, WEFT_INT32, WEFT_INT64, WEFT_UINT8, WEFT_UINT16, WEFT_UINT32, WEFT_UINT64, " +
	"WEFT_BOOL"

func forget(t *weft.Tensor) error {
	if !t.IsZero() {
		*t = weft.Tensor{}
	}
	return nil
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

// writeTensor writes a tensor to a checked struct of C's.
func writeTensor(p *C.weft_tensor, t *weft.Tensor) {
	// As a number: it may be memory of Go's, which the caller has pinned.
	*(*uintptr)(unsafe.Pointer(&p.data)) = uintptr(t.Data)
	p.dtype, p.dims = C.int32_t(t.DType), C.int32_t(len(t.Shape))
	for i := range p.shape {
		p.shape[i] = 0
		if i < len(t.Shape) {
			p.shape[i] = C.int64_t(t.Shape[i])
		}
	}
}

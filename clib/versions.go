//go:build cgo && linux

package main

import (
	"unsafe"

	"github.com/weftgo/weft"
)

// checkSize refuses a struct that is missing or shorter than any that there ever was.
func checkSize[T any](p *T, name string) (size uintptr, err error) {
	if p == nil {
		return 0, invalidf("the %s is NULL", name)
	}
	if size = *(*uintptr)(unsafe.Pointer(p)); size < unsafe.Sizeof(*p) {
		if least := leastSize(p); size < least {
			return 0, invalidf("the size of the %s is %d, and must be at least %d: set it to sizeof", name, size, least)
		}
	}
	return size, nil
}

// input is a struct of C's as this library knows it: mostly the caller's own. Of others, members
// that the program does not know are 0, and those that this library does not know must be.
func input[T any](p *T, name string) (*T, error) {
	if p != nil && *(*uintptr)(unsafe.Pointer(p)) == unsafe.Sizeof(*p) {
		return p, nil
	}
	return adapt(p, name)
}

func adapt[T any](p *T, name string) (*T, error) {
	size, err := checkSize(p, name)
	if err != nil {
		return nil, err
	}
	v := new(T)
	const most = 1 << 16
	if size > most {
		return nil, invalidf("the size of the %s is %d: set it to sizeof", name, size)
	}
	given := unsafe.Slice((*byte)(unsafe.Pointer(p)), size)
	known := copy(unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)), given)
	for i, b := range given[known:] {
		if b != 0 {
			return nil, weft.Unsupportedf("the %s has something at byte %d, which this library does not "+
				"know: it is older than the program; update the library, or leave it 0",
				name, known+i)
		}
	}
	return v, nil
}

// output checks a struct that is to be filled in.
func output[T any](p *T, name string) error {
	_, err := checkSize(p, name)
	return err
}

// fill writes to a struct the members that fit into it. The first member stays.
func fill[T any](p *T, v T) {
	size := min(*(*uintptr)(unsafe.Pointer(p)), unsafe.Sizeof(v))
	const first = unsafe.Sizeof(uintptr(0))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(p)), size)[first:], unsafe.Slice((*byte)(unsafe.Pointer(&v)), size)[first:])
}

package weft

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/weftgo/weft/cuda"
)

// Tensor is a dense row-major view of memory. It does not own the memory. Operations borrow it: the
// caller must neither change an input nor read an output until the operation has passed. On a GPU
// Data is a device address, which the host must not follow.
type Tensor struct {
	Data  unsafe.Pointer
	DType DType
	// Generation is the number of the batch in a tensor of received rows. Later batches reuse the
	// memory; an operation refuses the tensor once the memory holds another batch. It is 0 for
	// tensors of other memory, and for tensors of received rows that the caller makes. For the
	// latter an operation cannot detect a later batch of the same routing.
	Generation uint32
	Shape      []int
}

// BF16, FP16, E4M3 and E5M2 hold the bits of floats for which Go has no type.
type (
	BF16 uint16
	FP16 uint16
	E4M3 uint8
	E5M2 uint8
	E8M0 uint8
)

// absent is the type of a tensor that [Absent] made. Data points to the reason.
const absent DType = 255

// Absent makes a tensor without memory, for a reason. Every rank refuses an operation on it, with
// that reason. A layer over this package uses it to report a refused argument to the other ranks.
func Absent(why string) Tensor { return Tensor{Data: unsafe.Pointer(&why), DType: absent} }

// Absence is the reason of a tensor that [Absent] made, or empty.
func (t Tensor) Absence() string {
	if t.DType != absent {
		return ""
	}
	return *(*string)(t.Data)
}

// Element is the element type of a Go slice that can become a Tensor.
type Element interface {
	BF16 | FP16 | E4M3 | E5M2 | E8M0 | float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// DTypeOf is the element type that T stands for.
func DTypeOf[T Element]() DType {
	var v T
	switch any(v).(type) {
	case BF16:
		return BFloat16
	case FP16:
		return Float16
	case E4M3:
		return Float8E4M3
	case E5M2:
		return Float8E5M2
	case E8M0:
		return UE8M0
	case float32:
		return Float32
	case float64:
		return Float64
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	default:
		return Uint64
	}
}

// TensorOf views a slice as a tensor. Without a shape it has one dimension. It panics if the shape
// does not fill the slice, as indexing past its end would.
func TensorOf[T Element](s []T, shape ...int) Tensor {
	if shape == nil {
		shape = []int{len(s)}
	}
	t := Tensor{Data: unsafe.Pointer(unsafe.SliceData(s)), DType: DTypeOf[T](), Shape: shape}
	if err := t.CheckShape(); err != nil {
		panic("weft: " + err.Error())
	}
	if t.Elems() != len(s) {
		panic(fmt.Sprintf("weft: shape %v has %d elements, the slice %d", shape, t.Elems(), len(s)))
	}
	return t
}

// TensorAt views memory as a tensor of the given type and shape. It panics if the memory is too
// small.
func TensorAt(mem []byte, d DType, shape ...int) Tensor {
	t := Tensor{Data: unsafe.Pointer(unsafe.SliceData(mem)), DType: d, Shape: shape}
	if err := t.CheckShape(); err != nil {
		panic("weft: " + err.Error())
	}
	if t.Bytes() > len(mem) {
		panic(fmt.Sprintf("weft: a %v tensor of shape %v needs %d bytes, the memory has %d", d, shape, t.Bytes(), len(mem)))
	}
	return t
}

// DeviceTensor views memory of a GPU as a tensor of the given type and shape.
func DeviceTensor(p cuda.Pointer, d DType, shape ...int) Tensor {
	// The address lies outside of Go's heap, so the garbage collector ignores it.
	at := uintptr(p)
	return Tensor{Data: *(*unsafe.Pointer)(unsafe.Pointer(&at)), DType: d, Shape: shape}
}

// Pointer is Data in the type of package cuda.
func (t Tensor) Pointer() cuda.Pointer { return cuda.Pointer(uintptr(t.Data)) }

// SliceOf views a host tensor as a Go slice. It panics if T does not stand for the tensor's type.
func SliceOf[T Element](t Tensor) []T {
	if d := DTypeOf[T](); d != t.DType {
		panic(fmt.Sprintf("weft: a %v tensor viewed as %v", t.DType, d))
	}
	return unsafe.Slice((*T)(t.Data), t.Elems())
}

// IsZero reports whether the tensor is absent: no memory and no shape.
func (t Tensor) IsZero() bool { return t.Data == nil && t.Shape == nil }

// CheckShape refuses negative dimensions, and shapes whose bytes are more than an int counts.
func (t Tensor) CheckShape() error {
	bytes, empty := max(t.DType.Size(), 1), false
	for _, d := range t.Shape {
		high, low := bits.Mul64(uint64(bytes), uint64(d))
		switch {
		case d < 0:
			return Invalidf("shape %v: the dimension %d is negative", t.Shape, d)
		case d == 0:
			empty = true
		case high != 0 || low > math.MaxInt:
			bytes = math.MaxInt // unless a dimension is 0
		default:
			bytes = int(low)
		}
	}
	if bytes == math.MaxInt && !empty {
		return Invalidf("shape %v of %v: it has more bytes than an int counts", t.Shape, t.DType)
	}
	return nil
}

// Elems is the number of elements.
func (t Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes is the size in bytes.
func (t Tensor) Bytes() int { return t.Elems() * t.DType.Size() }

// Raw views a host tensor's memory.
func (t Tensor) Raw() []byte { return unsafe.Slice((*byte)(t.Data), t.Bytes()) }

// String describes the tensor without its contents: "bf16[4 7168]".
func (t Tensor) String() string {
	if t.IsZero() {
		return "none"
	}
	if why := t.Absence(); why != "" {
		return "none (" + why + ")"
	}
	return fmt.Sprintf("%v%v", t.DType, t.Shape)
}

package simd

import "fmt"

// Op is the operator of a reduction.
type Op uint8

// The operators of Reduce. An average is Sum with avg set.
const (
	Sum Op = iota
	Prod
	Min
	Max
)

var opNames = [...]string{"sum", "prod", "min", "max"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Type is the storage type of an element. BF16 and F16 are stored in 16 bits, E4M3 and E5M2 (the
// two OCP 8-bit floats) in 8.
type Type uint8

// The element types. Bool is a byte, true if it is not 0.
const (
	BF16 Type = iota
	F16
	F32
	F64
	I8
	I16
	I32
	I64
	U8
	U16
	U32
	U64
	E4M3
	E5M2
	Bool
)

var typeNames = [...]string{
	"bf16", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64",
	"e4m3", "e5m2", "bool",
}

var typeSizes = [...]uint8{2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 1}

// Size returns the bytes that one element takes.
func (t Type) Size() int { return int(typeSizes[t]) }

// Float reports whether t is a floating-point type.
func (t Type) Float() bool { return t <= F64 || t == E4M3 || t == E5M2 }

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

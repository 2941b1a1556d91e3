package weft

import (
	"fmt"
	"slices"
	"strings"
)

// DType is the type of a tensor's elements.
type DType uint8

// The element types. The 8-bit floats are OCP's E4M3 (no infinities) and E5M2; UE8M0 is a power of
// two, the type of block scales.
const (
	InvalidDType DType = iota
	BFloat16
	Float16
	Float32
	Float64
	Float8E4M3
	Float8E5M2
	UE8M0
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Bool // a byte, true if it is not 0
	dtypes
)

var dtypeInfo = [dtypes]struct {
	name string
	size int
}{
	InvalidDType: {"invalid", 0},
	BFloat16:     {"bf16", 2},
	Float16:      {"fp16", 2},
	Float32:      {"fp32", 4},
	Float64:      {"fp64", 8},
	Float8E4M3:   {"e4m3", 1},
	Float8E5M2:   {"e5m2", 1},
	UE8M0:        {"ue8m0", 1},
	Int8:         {"int8", 1},
	Int16:        {"int16", 2},
	Int32:        {"int32", 4},
	Int64:        {"int64", 8},
	Uint8:        {"uint8", 1},
	Uint16:       {"uint16", 2},
	Uint32:       {"uint32", 4},
	Uint64:       {"uint64", 8},
	Bool:         {"bool", 1},
}

// Size is the size of one element in bytes.
func (d DType) Size() int {
	if d >= dtypes {
		return 0
	}
	return dtypeInfo[d].size
}

// String is the type's short name: "bf16", "int32".
func (d DType) String() string {
	if d >= dtypes {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypeInfo[d].name
}

// ParseDType is the inverse of String.
func ParseDType(name string) (DType, error) {
	for d := BFloat16; d < dtypes; d++ {
		if dtypeInfo[d].name == name {
			return d, nil
		}
	}
	return InvalidDType, fmt.Errorf("unknown dtype %q: want one of %s", name, strings.Join(DTypeNames(), ", "))
}

// DTypeNames are the short names of all types.
func DTypeNames() (names []string) {
	for d := BFloat16; d < dtypes; d++ {
		names = append(names, dtypeInfo[d].name)
	}
	return names
}

// Op is a reduction.
type Op uint8

// The reductions. Avg is the sum divided by the number of ranks, rounded once. PreMulSum multiplies
// every element by a scalar first, in one multiply-add a rank. Sum and Max of bool are OR, Prod and
// Min are AND.
const (
	Sum Op = iota
	Prod
	Min
	Max
	Avg
	PreMulSum
	ops
)

var opNames = [ops]string{"sum", "prod", "min", "max", "avg", "premulsum"}

// String is the reduction's name: "sum".
func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// Valid reports whether o is one of the reductions.
func (o Op) Valid() bool { return o < ops }

// ParseOp is the inverse of String.
func ParseOp(name string) (Op, error) {
	for o, n := range opNames {
		if n == name {
			return Op(o), nil
		}
	}
	return 0, fmt.Errorf("unknown reduction %q: want one of %s", name, strings.Join(opNames[:], ", "))
}

// OpNames are the names of all reductions.
func OpNames() []string { return slices.Clone(opNames[:]) }

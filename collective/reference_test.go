package collective

import (
	"encoding/binary"
	"math"
	"math/big"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// reference reduces the inputs of all ranks by a plain loop over elements and ranks.
func reference(op weft.Op, d weft.DType, inputs [][]byte) []byte {
	out := make([]byte, len(inputs[0]))
	size := d.Size()
	for at := 0; at < len(out); at += size {
		switch {
		case d == weft.Float64:
			acc := load64(inputs[0][at:])
			for _, in := range inputs[1:] {
				acc = step(op, acc, load64(in[at:]), func(x float64) float64 { return x })
			}
			if op == weft.Avg {
				acc /= float64(len(inputs))
			}
			bits := math.Float64bits(acc)
			if acc != acc {
				bits = 1<<63 - 1
			}
			binary.LittleEndian.PutUint64(out[at:], bits)
		case isFloat(d):
			acc := load32(d, inputs[0][at:])
			for _, in := range inputs[1:] {
				acc = step(op, acc, load32(d, in[at:]), func(x float64) float64 { return float64(float32(x)) })
			}
			if op == weft.Avg {
				acc = float64(float32(acc) / float32(len(inputs)))
			}
			narrow := float32(acc)
			simd.Convert(simd.Type(arithmeticOf[d]-1), unsafe.Pointer(&out[at]), simd.F32, unsafe.Pointer(&narrow), 1)
		default:
			acc := loadInt(d, inputs[0][at:])
			for _, in := range inputs[1:] {
				x := loadInt(d, in[at:])
				switch op {
				case weft.Sum, weft.Avg:
					acc.Add(acc, x)
				case weft.Prod:
					acc.Mul(acc, x)
				case weft.Min:
					if x.Cmp(acc) < 0 {
						acc = x
					}
				case weft.Max:
					if x.Cmp(acc) > 0 {
						acc = x
					}
				}
			}
			if op == weft.Avg {
				acc.Quo(acc, big.NewInt(int64(len(inputs))))
			}
			// Two's complement, cut to the type's size.
			acc.And(acc, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(8*size)), big.NewInt(1)))
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], acc.Uint64())
			copy(out[at:at+size], word[:])
		}
	}
	return out
}

// step is one step of a float reduction in float64, rounded to the accumulator's type. For fp32
// operands the sum and product of float64 round twice only where the first rounding is exact: 53
// bits are more than twice 24.
func step(op weft.Op, acc, x float64, round func(float64) float64) float64 {
	switch op {
	case weft.Prod:
		return round(acc * x)
	case weft.Min, weft.Max:
		if acc != acc || x != x {
			return math.NaN()
		}
		if op == weft.Min {
			return math.Min(acc, x)
		}
		return math.Max(acc, x)
	default:
		return round(acc + x)
	}
}

func isFloat(d weft.DType) bool {
	switch d {
	case weft.BFloat16, weft.Float16, weft.Float32, weft.Float64, weft.Float8E4M3, weft.Float8E5M2:
		return true
	}
	return false
}

func load64(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }

func load32(d weft.DType, b []byte) float64 {
	var x float32
	simd.Convert(simd.F32, unsafe.Pointer(&x), simd.Type(arithmeticOf[d]-1), unsafe.Pointer(&b[0]), 1)
	return float64(x)
}

func loadInt(d weft.DType, b []byte) *big.Int {
	var word [8]byte
	size := d.Size()
	copy(word[:], b[:size])
	u := binary.LittleEndian.Uint64(word[:])
	switch d {
	case weft.Int8, weft.Int16, weft.Int32, weft.Int64:
		shift := uint(64 - 8*size)
		return big.NewInt(int64(u<<shift) >> shift)
	}
	return new(big.Int).SetUint64(u)
}

package collective

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// reference reduces the inputs of all ranks by a plain loop over elements and ranks. A pre-multiplied
// sum has a scalar of spec.ScalarType.
func reference(op weft.Op, d weft.DType, scalar []byte, inputs [][]byte) []byte {
	return referenceBy(op, d, scalar, inputs, len(inputs))
}

// byHost reduces the inputs of each host, and what came of that in the hosts' order. It is reference where all share
// memory, and for integers, whose order makes no difference.
func byHost(op weft.Op, d weft.DType, scalar []byte, inputs [][]byte, hosts []int, exact bool) []byte {
	last := 0
	for _, h := range hosts {
		last = max(last, h)
	}
	if last == 0 || !isFloat(d) {
		return reference(op, d, scalar, inputs)
	}
	within, across := op, op
	if op == weft.Avg {
		within = weft.Sum
	}
	if op == weft.PreMulSum {
		across = weft.Sum
	}
	wide := exact && d != weft.Float32 && d != weft.Float64
	type host struct{ rows [][]byte }
	all := make([]host, last+1)
	for i, in := range inputs {
		if wide {
			w := make([]byte, 4*len(in)/d.Size())
			for k := 0; k < len(w); k += 4 {
				store32(weft.Float32, w[k:], float32(load32(d, in[k/4*d.Size():])))
			}
			in = w
		}
		all[hosts[i]].rows = append(all[hosts[i]].rows, in)
	}
	t := d
	if wide {
		t = weft.Float32
	}
	var partials [][]byte
	for _, h := range all {
		if len(h.rows) > 0 {
			partials = append(partials, reference(within, t, scalar, h.rows))
		}
	}
	if len(partials) == 1 { // the others are masked
		return reference(op, d, scalar, inputs)
	}
	sum := referenceBy(across, t, nil, partials, len(inputs))
	if !wide {
		return sum
	}
	out := make([]byte, len(inputs[0]))
	for k := 0; k < len(sum); k += 4 {
		store32(d, out[k/4*d.Size():], float32(load32(weft.Float32, sum[k:])))
	}
	return out
}

// referenceBy is reference with what an average divides by.
func referenceBy(op weft.Op, d weft.DType, scalar []byte, inputs [][]byte, by int) []byte {
	out := make([]byte, len(inputs[0]))
	size := d.Size()
	for at := 0; at < len(out); at += size {
		switch {
		case d == weft.Bool:
			some, every := byte(0), byte(1)
			for _, in := range inputs {
				if in[at] != 0 {
					some = 1
				} else {
					every = 0
				}
			}
			out[at] = some
			if op == weft.Prod || op == weft.Min {
				out[at] = every
			}
		case op == weft.PreMulSum && d == weft.Float64:
			acc := 0.0
			for _, in := range inputs {
				acc = math.FMA(load64(scalar), load64(in[at:]), acc)
			}
			putDouble(out[at:], acc)
		case op == weft.PreMulSum && isFloat(d):
			acc := float32(0)
			for _, in := range inputs {
				acc = simd.FMA32(math.Float32frombits(binary.LittleEndian.Uint32(scalar)), float32(load32(d, in[at:])), acc)
			}
			store32(d, out[at:], acc)
		case d == weft.Float64:
			acc := load64(inputs[0][at:])
			for _, in := range inputs[1:] {
				acc = step(op, acc, load64(in[at:]), func(x float64) float64 { return x })
			}
			if op == weft.Avg {
				acc /= float64(by)
			}
			putDouble(out[at:], acc)
		case isFloat(d):
			acc := load32(d, inputs[0][at:])
			for _, in := range inputs[1:] {
				acc = step(op, acc, load32(d, in[at:]), func(x float64) float64 { return float64(float32(x)) })
			}
			if op == weft.Avg {
				acc = float64(float32(acc) / float32(by))
			}
			narrow := float32(acc)
			store32(d, out[at:], narrow)
		default:
			load := func(in []byte) *big.Int {
				x := loadInt(d, in[at:])
				if op == weft.PreMulSum {
					x.Mul(x, loadInt(d, scalar))
				}
				return x
			}
			acc := load(inputs[0])
			for _, in := range inputs[1:] {
				x := load(in)
				switch op {
				case weft.Sum, weft.Avg, weft.PreMulSum:
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
				acc.Quo(acc, big.NewInt(int64(by)))
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

func putDouble(b []byte, x float64) {
	bits := math.Float64bits(x)
	if x != x {
		bits = 1<<63 - 1
	}
	binary.LittleEndian.PutUint64(b, bits)
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
	switch d {
	case weft.BFloat16:
		x = simd.BF16ToF32(binary.LittleEndian.Uint16(b))
	case weft.Float16:
		x = simd.F16ToF32(binary.LittleEndian.Uint16(b))
	case weft.Float8E4M3:
		x = simd.E4M3ToF32(b[0])
	case weft.Float8E5M2:
		x = simd.E5M2ToF32(b[0])
	default:
		x = math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return float64(x)
}

func store32(d weft.DType, b []byte, x float32) {
	switch {
	case d == weft.BFloat16:
		binary.LittleEndian.PutUint16(b, simd.BF16FromF32(x))
	case d == weft.Float16:
		binary.LittleEndian.PutUint16(b, simd.F16FromF32(x))
	case d == weft.Float8E4M3:
		b[0] = simd.E4M3FromF32(x)
	case d == weft.Float8E5M2:
		b[0] = simd.E5M2FromF32(x)
	case x != x:
		binary.LittleEndian.PutUint32(b, simd.NaNF32)
	default:
		binary.LittleEndian.PutUint32(b, math.Float32bits(x))
	}
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

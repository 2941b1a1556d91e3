package collective

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/floats"
)

// summands makes one rank's input and the result of all ranks'. The numbers are so
// small that every type holds every partial result exactly, in any order.
func summands(dtype weft.DType, op weft.Op, count, rank, size int) (in, want []byte, err error) {
	period := 7 * size // a cycle of inputs and results
	value := func(rank, i int) float64 { return float64((i + rank) % 3) }
	result := func(i int) float64 {
		var sum, low, high float64
		low = 3
		for r := range size {
			v := value(r, i)
			sum, low, high = sum+v, min(low, v), max(high, v)
		}
		switch op {
		case weft.Min:
			return low
		case weft.Max:
			return high
		}
		return sum
	}
	switch op {
	case weft.Prod: // one rank brings a 2
		value = func(rank, i int) float64 { return 1 + float64(b2i(i%size == rank)) }
		result = func(int) float64 { return 2 }
	case weft.Avg: // all bring the same
		value = func(_, i int) float64 { return float64(i % 7) }
		result = func(i int) float64 { return float64(i % 7) }
	}
	period *= 3
	var a, b []byte
	for i := range min(period, count) {
		if a, err = appendNumber(a, dtype, value(rank, i)); err != nil {
			return nil, nil, err
		}
		if b, err = appendNumber(b, dtype, result(i)); err != nil {
			return nil, nil, err
		}
	}
	return repeat(a, count*dtype.Size()), repeat(b, count*dtype.Size()), nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func repeat(unit []byte, n int) []byte {
	out := make([]byte, n)
	for i := 0; i < n; {
		i += copy(out[i:], unit)
	}
	return out
}

func appendNumber(b []byte, d weft.DType, v float64) ([]byte, error) {
	switch d {
	case weft.BFloat16, weft.Float16, weft.Float32:
		return floats.Append(b, d, float32(v))
	case weft.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v)), nil
	case weft.Int8, weft.Uint8:
		return append(b, byte(v)), nil
	case weft.Int16, weft.Uint16:
		return binary.LittleEndian.AppendUint16(b, uint16(v)), nil
	case weft.Int32, weft.Uint32:
		return binary.LittleEndian.AppendUint32(b, uint32(v)), nil
	case weft.Int64, weft.Uint64:
		return binary.LittleEndian.AppendUint64(b, uint64(v)), nil
	}
	return nil, fmt.Errorf("%v messages are not measured; take bf16, fp16, fp32, fp64 or an integer", d)
}

package collective

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/floats"
)

// content is what an operand holds: parts of so many bytes, each of which repeats a unit.
type content struct {
	part  int
	units [][]byte
}

func (c *content) bytes() int { return c.part * len(c.units) }

// each calls f with the content of n bytes from at on, piece by piece, until f returns false.
func (c *content) each(at, n int, f func(from int, want []byte) bool) bool {
	for done := 0; done < n; {
		part, in := (at+done)/c.part, (at+done)%c.part
		unit := c.units[part]
		want := unit[in%len(unit):]
		want = want[:min(len(want), c.part-in, n-done)]
		if !f(done, want) {
			return false
		}
		done += len(want)
	}
	return true
}

// write writes the content from at on.
func (c *content) write(to []byte, at int) {
	c.each(at, len(to), func(from int, want []byte) bool { copy(to[from:], want); return true })
}

// holds reports whether bytes are the content from at on.
func (c *content) holds(got []byte, at int) bool {
	return c.each(at, len(got), func(from int, want []byte) bool {
		return bytes.Equal(got[from:from+len(want)], want)
	})
}

// wrong counts the elements, of so many bytes, that are not the content from at on. With zeros an element may
// be zero as well, as in a loopback, where parts of a result that a peer would have sent are zeros.
func (c *content) wrong(got []byte, at, size int, zeros bool) int64 {
	var n int64
	last := -1
	c.each(at, len(got), func(from int, want []byte) bool {
		for i, b := range got[from : from+len(want)] {
			if element := (from + i) / size; b != want[i] && !(zeros && b == 0) && element != last {
				n, last = n+1, element
			}
		}
		return true
	})
	return n
}

// longUnit is about how many bytes of a unit are made: then content is compared in long pieces.
const longUnit = 16 << 10

func repeat(unit []byte, part int) []byte {
	n := max(1, min(longUnit, part)/len(unit))
	return bytes.Repeat(unit, n)
}

// moved is what a rank sends a rank: bytes of which no word is all ones, for a float of that kind may
// arrive as another NaN.
func moved(from, to, part int) []byte {
	const period = 251
	unit := make([]byte, period)
	for i := range unit {
		unit[i] = byte((i + 37*from + 101*to) % period)
	}
	return repeat(unit, part)
}

// reduction makes the operands of a reduction. Numbers are so small that every type holds every
// partial result exactly, in any order.
type reduction struct {
	dtype weft.DType
	op    weft.Op
	ranks int
	alone bool // a loopback: the other ranks bring zeros
}

// period is that of the numbers, for every number of ranks and every operation.
func (r reduction) period() int { return 77 * r.ranks }

// number is what a rank brings to element i.
func (r reduction) number(rank, i int) float64 {
	switch {
	case r.alone && rank > 0:
		return 0
	case r.dtype == weft.Bool:
	case r.op == weft.Prod: // one rank brings a 2
		return float64(1 + b2i(i%r.ranks == rank))
	case r.op == weft.Avg: // all bring the same
		return float64(i % 7)
	}
	if (rank+i)%r.ranks >= 4 { // an fp8 float holds whole numbers up to 8
		return 0
	}
	return float64((5*i + 3*rank + i/7) % 11 % 3)
}

// result is the plain loop.
func (r reduction) result(i int) float64 {
	sum, product, low, high := 0.0, 1.0, math.Inf(1), math.Inf(-1)
	for rank := range r.ranks {
		v := r.number(rank, i)
		sum, product, low, high = sum+v, product*v, min(low, v), max(high, v)
	}
	isBool := r.dtype == weft.Bool
	switch {
	case r.op == weft.Min || isBool && r.op == weft.Prod:
		return low
	case r.op == weft.Max || isBool:
		return high
	case r.op == weft.Prod:
		return product
	case r.op == weft.Avg:
		return sum / float64(r.ranks)
	case r.op == weft.PreMulSum:
		return factor * sum
	default:
		return sum
	}
}

// factor is that of a pre-multiplied sum.
const factor = 2

// unit is what a rank brings to a part of so many bytes, or the result if the rank is negative.
func (r reduction) unit(rank, of, part int) ([]byte, error) {
	var b []byte
	for i := range r.period() {
		v := 0.0
		if i += 13 * of; rank < 0 {
			v = r.result(i)
		} else {
			v = r.number(rank, i)
		}
		var err error
		if b, err = appendNumber(b, r.dtype, v); err != nil {
			return nil, err
		}
	}
	return repeat(b, part), nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// appendNumber appends a small whole number.
func appendNumber(b []byte, d weft.DType, v float64) ([]byte, error) {
	switch d {
	case weft.BFloat16, weft.Float16, weft.Float32:
		return floats.Append(b, d, float32(v))
	case weft.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v)), nil
	case weft.Float8E4M3:
		return append(b, eightBits(v, 3, 7)), nil
	case weft.Float8E5M2:
		return append(b, eightBits(v, 2, 15)), nil
	case weft.Bool:
		return append(b, byte(b2i(v != 0))), nil
	case weft.Int8, weft.Uint8:
		return append(b, byte(v)), nil
	case weft.Int16, weft.Uint16:
		return binary.LittleEndian.AppendUint16(b, uint16(v)), nil
	case weft.Int32, weft.Uint32:
		return binary.LittleEndian.AppendUint32(b, uint32(v)), nil
	case weft.Int64, weft.Uint64:
		return binary.LittleEndian.AppendUint64(b, uint64(v)), nil
	}
	return nil, fmt.Errorf("operations on %v are not measured; take another type", d)
}

// eightBits is a number that an 8-bit float with so many bits of mantissa holds exactly.
func eightBits(v float64, mantissa, bias int) byte {
	if v == 0 {
		return 0
	}
	f, e := math.Frexp(v)
	return byte((e-1+bias)<<mantissa) | byte((2*f-1)*float64(int(1)<<mantissa))
}

package host

import (
	"unsafe"

	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/simd"
)

// normed is what an all-reduce with a norm needs beside: memory that grows to the largest call's.
type normed struct {
	sums []byte // that have no other place
	row  []byte
}

// begin gives the sums a place: the output, if it is of their type.
func (n *normed) begin(c *call) {
	norm := c.given.Norm
	if norm.Quant != spec.QuantNone {
		n.sums = grown(n.sums, c.Bytes)
		c.out = n.sums
	}
	n.row = grown(n.row, norm.Hidden*c.DType.Size())
}

// end goes on with the sums.
func (n *normed) end(c *call) {
	norm, t, size := c.given.Norm, enginehost.Arithmetic(c.DType), c.DType.Size()
	bytes := norm.Hidden * size
	for token := range norm.Tokens {
		at := token * bytes
		sum := c.out[at:][:bytes]
		if !norm.Residual.IsZero() {
			simd.Reduce(simd.Sum, t, false, n.row, sum, norm.Residual.Raw()[at:][:bytes])
			sum = n.row
		}
		if !norm.ResidualOut.IsZero() {
			copy(norm.ResidualOut.Raw()[at:][:bytes], sum)
		}
		to := pointer(n.row)
		if norm.Quant == spec.QuantNone {
			to = pointer(c.out[at:])
		}
		simd.RMSNorm(t, to, pointer(sum), norm.Gamma.Data, norm.Hidden, norm.Eps)
		n.quantise(c, t, token)
	}
}

// quantise makes a row e4m3 numbers.
func (n *normed) quantise(c *call, t simd.Type, token int) {
	norm, groups := c.given.Norm, c.given.Norm.Hidden/spec.QuantGroup
	kind, width := simd.ScaleF32, 4
	q := unsafe.Add(c.given.Out.Data, token*norm.Hidden)
	switch norm.Quant {
	case spec.QuantNone:
		return
	case spec.QuantStatic:
		simd.QuantizeE4M3By(t, q, pointer(n.row), norm.Hidden, *(*float32)(norm.Scale.Data))
		return
	case spec.QuantPow2:
		kind = simd.ScaleF32Pow2
	case spec.QuantUE8M0:
		kind, width = simd.ScaleUE8M0, 1
	default:
	}
	simd.QuantizeE4M3(t, q, unsafe.Add(norm.Scales.Data, token*groups*width), pointer(n.row), norm.Hidden, kind)
}

// grown is memory of so many bytes, b's if it has as many.
func grown(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

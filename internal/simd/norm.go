package simd

import (
	"math"
	"unsafe"
)

const (
	vectorBytes = 16
	squareLanes = 512
	warpLanes   = 32
	mostWidth   = vectorBytes / 2 // elements of a vector, at most
)

// SumOfSquares returns the sum of the squares of n elements of type t (BF16, F16 or F32) in fp32. The
// order is fixed, and one that a block of 512 threads of a GPU keeps to, for any n:
//
//   - A vector is 16 bytes, and the last one ends in zeros. The sum of its squares is a tree:
//     s[i] += s[i+h] for i < h, with h = 4 (F32: 2), ..., 1.
//   - Lane l of 512 starts at +0 and takes the sums of the vectors l, l+512, l+1024, ... in that order.
//   - The 32 lanes of a warp are a tree, with h = 16, ..., 1, and so are the 16 warps.
//
// Products and sums are rounded, each.
func SumOfSquares(t Type, row unsafe.Pointer, n int) float32 {
	width := vectorBytes / t.Size()
	var lanes [squareLanes]float32
	var x [mostWidth * warpLanes]float32
	for at, l := 0, 0; at < n; l = (l + warpLanes) % squareLanes {
		m := min(width*warpLanes, n-at)
		widen(t, x[:m], row, at)
		at += m
		clear(x[m:])
		for v := range (m + width - 1) / width {
			lanes[l+v] += squares((*[mostWidth]float32)(x[v*width:]), width)
		}
	}
	var warps [squareLanes / warpLanes]float32
	for w := range warps {
		warps[w] = tree(lanes[w*warpLanes:][:warpLanes])
	}
	return tree(warps[:])
}

// squares adds those of a vector. A product is converted so that no machine fuses it with the sum.
func squares(x *[mostWidth]float32, width int) float32 {
	if width == 4 {
		return (float32(x[0]*x[0]) + float32(x[2]*x[2])) + (float32(x[1]*x[1]) + float32(x[3]*x[3]))
	}
	a, b := float32(x[0]*x[0])+float32(x[4]*x[4]), float32(x[1]*x[1])+float32(x[5]*x[5])
	c, d := float32(x[2]*x[2])+float32(x[6]*x[6]), float32(x[3]*x[3])+float32(x[7]*x[7])
	return (a + c) + (b + d)
}

// tree adds as many numbers as a power of two.
func tree(s []float32) float32 {
	for h := len(s) / 2; h > 0; h /= 2 {
		for i := range h {
			s[i] += s[i+h]
		}
	}
	return s[0]
}

// RMSNorm computes out[i] = round((row[i]*k)*gamma[i]) for n elements of type t (BF16, F16 or F32), with
// k = 1/sqrt(SumOfSquares/n + eps): fp32 operations that are rounded each, then one rounding to t. out may
// equal row.
func RMSNorm(t Type, out, row, gamma unsafe.Pointer, n int, eps float32) {
	k := 1 / float32(math.Sqrt(float64(SumOfSquares(t, row, n)/float32(n)+eps)))
	var x, g [QuantGroup]float32
	for at := 0; at < n; at += QuantGroup {
		m := min(QuantGroup, n-at)
		widen(t, x[:m], row, at)
		widen(t, g[:m], gamma, at)
		for i := range x[:m] {
			x[i] = float32(x[i]*k) * g[i]
		}
		narrow(t, out, at, x[:m])
	}
}

// QuantizeE4M3By writes n elements of type t (BF16, F16 or F32) as e4m3 numbers at q: each is multiplied by
// 1/scale in fp32 and saturates at 448; NaN stays NaN.
func QuantizeE4M3By(t Type, q, src unsafe.Pointer, n int, scale float32) {
	k := 1 / scale
	var x [QuantGroup]float32
	for at := 0; at < n; at += QuantGroup {
		m := min(QuantGroup, n-at)
		widen(t, x[:m], src, at)
		for i, o := 0, view[uint8](q, at, m); i < m; i++ {
			o[i] = E4M3FromF32(x[i] * k)
		}
	}
}

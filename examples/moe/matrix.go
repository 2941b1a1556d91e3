package main

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
)

// matrix is a row-major fp32 matrix without gaps between its rows.
type matrix = blas32.General

func matrixOf(v []float32, r, c int) matrix {
	return matrix{Rows: r, Cols: c, Stride: c, Data: v[: r*c : r*c]}
}
func newMatrix(rows, cols int) matrix   { return matrixOf(make([]float32, rows*cols), rows, cols) }
func rows(m matrix, from, n int) matrix { return matrixOf(m.Data[from*m.Cols:], n, m.Cols) }
func row(m matrix, i int) []float32     { return rows(m, i, 1).Data }
func tensor(m matrix) weft.Tensor       { return weft.TensorOf(m.Data, m.Rows, m.Cols) }
func vector(v []float32) blas32.Vector  { return blas32.Vector{N: len(v), Inc: 1, Data: v} }
func add(sum, v []float32)              { blas32.Axpy(1, vector(v), vector(sum)) }

// Gonum computes x·w and xᵀ·g by adding one scaled row after the other. Every element is thus
// summed in the same order for any number of rows, so a token's numbers depend neither on the rank
// that computes them nor on the tokens beside it. It computes g·wᵀ by dot products, whose order
// follows the shape and even the alignment of memory; so here w is transposed first.

// times is y = x·w.
func times(x, w matrix) matrix {
	y := newMatrix(x.Rows, w.Cols)
	blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, x, w, 0, y)
	return y
}

// weightGradient sets gw to the gradient of w, where g is that of y.
func weightGradient(gw, x, g matrix) { blas32.Gemm(blas.Trans, blas.NoTrans, 1, x, g, 0, gw) }

// inputGradient is the gradient of x, where g is that of y.
func inputGradient(g, w matrix) matrix {
	transposed := newMatrix(w.Cols, w.Rows)
	for i := range w.Rows {
		for j, v := range row(w, i) {
			transposed.Data[j*w.Rows+i] = v
		}
	}
	return times(g, transposed)
}

// softmax turns a row of logits into probabilities.
func softmax(v []float32) {
	top, sum := slices.Max(v), float32(0)
	for i, x := range v {
		v[i] = float32(math.Exp(float64(x - top)))
		sum += v[i]
	}
	blas32.Scal(1/sum, vector(v))
}

// softmaxBackward turns g from the gradient of probabilities into that of their logits.
func softmaxBackward(g, probs []float32) {
	mean := float32(0)
	for i, p := range probs {
		mean += p * g[i]
	}
	for i, p := range probs {
		g[i] = p * (g[i] - mean)
	}
}

// fill draws normal numbers of a standard deviation.
func fill(m matrix, rng *rand.Rand, deviation float64) {
	for i := range m.Data {
		m.Data[i] = float32(rng.NormFloat64() * deviation)
	}
}

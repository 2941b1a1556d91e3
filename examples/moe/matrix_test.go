package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// random is a matrix some of whose numbers are zero, as behind a relu.
func random(rng *rand.Rand, r, c int) matrix {
	m := newMatrix(r, c)
	fill(m, rng, 1)
	for i := range m.Data {
		if rng.IntN(4) == 0 {
			m.Data[i] = 0
		}
	}
	return m
}

// TestProducts compares with sums in float64.
func TestProducts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, size := range [][3]int{{1, 1, 1}, {3, 5, 7}, {65, 130, 67}, {200, 64, 256}} {
		n, in, out := size[0], size[1], size[2]
		x, w, g := random(rng, n, in), random(rng, in, out), random(rng, n, out)
		y, gx, gw := times(x, w), inputGradient(g, w), random(rng, in, out) // gw is overwritten
		weightGradient(gw, x, g)
		close := func(what string, m matrix, want func(i, j int) (sum float64)) {
			for i := range m.Rows {
				for j, got := range row(m, i) {
					if w := want(i, j); math.Abs(float64(got)-w) > 1e-4 {
						t.Fatalf("%v: %s[%d][%d] is %v, want %v", size, what, i, j, got, w)
					}
				}
			}
		}
		close("x·w", y, func(i, j int) (sum float64) {
			for k := range in {
				sum += float64(row(x, i)[k]) * float64(row(w, k)[j])
			}
			return sum
		})
		close("g·wᵀ", gx, func(i, j int) (sum float64) {
			for k := range out {
				sum += float64(row(g, i)[k]) * float64(row(w, j)[k])
			}
			return sum
		})
		close("xᵀ·g", gw, func(i, j int) (sum float64) {
			for k := range n {
				sum += float64(row(x, k)[i]) * float64(row(g, k)[j])
			}
			return sum
		})
	}
}

// TestRowsAlone computes rows together and apart, at every alignment: the bits are the same.
// Everything about equal losses rests on this.
func TestRowsAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, size := range [][3]int{{9, 20, 13}, {70, 130, 67}, {300, 64, 256}} {
		n, in, out := size[0], size[1], size[2]
		x, w, g := random(rng, n, in), random(rng, in, out), random(rng, n, out)
		y, gx := times(x, w), inputGradient(g, w)
		for i := range n {
			moved := matrixOf(append(make([]float32, i%4), row(x, i)...)[i%4:], 1, in)
			if got := times(moved, w); !slices.Equal(bits(got.Data), bits(row(y, i))) {
				t.Fatalf("%v: row %d of x·w alone differs", size, i)
			}
			if got := inputGradient(rows(g, i, 1), w); !slices.Equal(bits(got.Data), bits(row(gx, i))) {
				t.Fatalf("%v: row %d of g·wᵀ alone differs", size, i)
			}
		}
	}
}

func TestSoftmax(t *testing.T) {
	v := []float32{1000, 999, 0, float32(math.Inf(-1))} // whose exponentials fp32 does not hold
	softmax(v)
	for i, want := range []float64{1 / (1 + math.Exp(-1)), 1 / (1 + math.E), 0, 0} {
		if math.Abs(float64(v[i])-want) > 1e-6 {
			t.Errorf("probability %d is %v, want %v", i, v[i], want)
		}
	}
}

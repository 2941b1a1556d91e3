package pull

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/simd"
)

// TestWideSums holds sums of fp32 by host to the bound that ep.PartialByHostFP32 states, and to exact sums.
func TestWideSums(t *testing.T) {
	for _, of := range []struct {
		t      simd.Type
		wide   func(uint16) float32
		narrow func(float32) uint16
		half   float64 // a unit of the last place, of the number itself at most
	}{
		{simd.BF16, simd.BF16ToF32, simd.BF16FromF32, 0x1p-8},
		{simd.F16, simd.F16ToF32, simd.F16FromF32, 0x1p-11},
	} {
		t.Run(of.t.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(of.t)))
			for trial := range 200 {
				n, hosts, biases := 1+random.IntN(70), random.IntN(5), random.IntN(spec.MostBiases+1)
				row := func() []uint16 {
					r := make([]uint16, n)
					for i := range r {
						r[i] = of.narrow(float32(math.Ldexp(random.Float64()-0.5, random.IntN(12)-6)))
					}
					return r
				}
				exact, size := make([]*big.Float, n), make([]float64, n)
				for i := range exact {
					exact[i] = new(big.Float).SetPrec(400)
				}
				add := func(row []uint16, w float32) {
					for i, x := range row {
						y := new(big.Float).SetPrec(400).Mul(big.NewFloat(float64(of.wide(x))), big.NewFloat(float64(w)))
						exact[i].Add(exact[i], y)
						size[i] += math.Abs(float64(of.wide(x)) * float64(w))
					}
				}
				additions := hosts + biases
				var sums, bias []unsafe.Pointer
				home := wideHome{t: of.t, sums: make([]float32, n)}
				for i := range biases {
					b := row()
					add(b, 1)
					bias, home.bias[i] = append(bias, unsafe.Pointer(&b[0])), make([]float32, n)
				}
				for range hosts {
					var rows []unsafe.Pointer
					var weights []float32
					for range random.IntN(5) {
						r, w := row(), random.Float32()*4-2
						add(r, w)
						rows, weights = append(rows, unsafe.Pointer(&r[0])), append(weights, w)
					}
					sum := make([]float32, n)
					sum[0] = float32(math.NaN()) // what was there is of no account
					wideSum(of.t, unsafe.Pointer(&sum[0]), make([]float32, n), rows, weights)
					sums, additions = append(sums, unsafe.Pointer(&sum[0])), additions+len(rows)
				}
				out := make([]uint16, n)
				home.sum(unsafe.Pointer(&out[0]), sums, bias)
				for i, x := range out {
					got := big.NewFloat(float64(of.wide(x))).SetPrec(400)
					off, _ := got.Sub(got, exact[i]).Float64()
					want, _ := exact[i].Float64()
					least := 0x1p-24 // numbers below the smallest normal one
					if bound := of.half*math.Abs(want) + float64(additions+1)*0x1p-24*size[i] + least; math.Abs(off) > bound {
						t.Fatalf("trial %d, element %d: off by %g of %g, at most %g", trial, i, off, want, bound)
					}
				}
			}
		})
	}
}

package floats

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestFMAIsExact(t *testing.T) {
	float := rapid.Custom(func(t *rapid.T) float32 {
		// Exponents close together, where the sum of product and addend rounds awkwardly.
		return float32(math.Ldexp(float64(rapid.Int32Range(-1<<24, 1<<24).Draw(t, "m")),
			rapid.IntRange(-40, 10).Draw(t, "e")))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := float.Draw(t, "a"), float.Draw(t, "b"), float.Draw(t, "c")
		exact := new(big.Float).SetPrec(400).Mul(big.NewFloat(float64(a)), new(big.Float).SetPrec(400).SetFloat64(float64(b)))
		exact.Add(exact, new(big.Float).SetPrec(400).SetFloat64(float64(c)))
		want, _ := exact.Float32()
		if got := FMA(a, b, c); got != want {
			t.Fatalf("fma(%v, %v, %v) = %v, want %v", a, b, c, got, want)
		}
	})
}

package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// Shapes of one token of a large mixture-of-experts model: a row of 7168 elements, eight
// selections.
const (
	benchHidden = 7168
	benchTopK   = 8
)

func eachPathB(b *testing.B, f func(b *testing.B)) {
	for p := portable; p <= best; p++ {
		b.Run(p.String(), func(b *testing.B) { with(p, func() { f(b) }) })
	}
}

// benchRows returns k rows of n ordinary numbers, aligned to cache lines.
func benchRows(t Type, k, n int) []unsafe.Pointer {
	r := rand.New(rand.NewPCG(1, 1))
	rows := make([]unsafe.Pointer, k)
	x := make([]float32, n)
	for i := range rows {
		for j := range x {
			x[j] = float32(r.NormFloat64())
		}
		rows[i] = pointer(alignedBytes(n * t.Size()))
		if t.Float() {
			if t == F64 {
				for j, v := range x {
					view[float64](rows[i], j, 1)[0] = float64(v)
				}
			} else {
				narrow(t, rows[i], 0, x)
			}
		}
	}
	return rows
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+64)
	off := -misalignmentOf(pointer(b)) & 63
	return b[off : off+n : off+n]
}

func BenchmarkWeightedSum(b *testing.B) {
	for _, t := range sumTypes {
		b.Run(t.String(), func(b *testing.B) {
			eachPathB(b, func(b *testing.B) {
				rows, w := benchRows(t, benchTopK+1, benchHidden), make([]float32, benchTopK)
				for i := range w {
					w[i] = 1 / float32(i+2)
				}
				b.SetBytes(int64((benchTopK + 1) * benchHidden * t.Size()))
				for b.Loop() {
					WeightedSum(t, rows[benchTopK], benchHidden, rows[:benchTopK], w, nil)
				}
			})
		})
	}
}

func BenchmarkScale(b *testing.B) {
	eachPathB(b, func(b *testing.B) {
		rows := benchRows(BF16, 2, benchHidden)
		b.SetBytes(2 * 2 * benchHidden)
		for b.Loop() {
			Scale(BF16, rows[1], rows[0], benchHidden, 0.3)
		}
	})
}

func BenchmarkReduce(b *testing.B) {
	for _, t := range allTypes {
		for _, op := range []Op{Sum, Prod, Min} {
			b.Run(fmt.Sprintf("%v/%v", t, op), func(b *testing.B) {
				eachPathB(b, func(b *testing.B) {
					const k = 2
					var srcs [k][]byte
					for i, row := range benchRows(t, k, benchHidden) {
						srcs[i] = unsafe.Slice((*byte)(row), benchHidden*t.Size())
					}
					dst := alignedBytes(benchHidden * t.Size())
					b.SetBytes(int64((k + 1) * len(dst)))
					for b.Loop() {
						Reduce(op, t, false, dst, srcs[:]...)
					}
				})
			})
		}
	}
}

func BenchmarkAverageInts(b *testing.B) {
	for _, t := range []Type{I32, I64} {
		b.Run(t.String(), func(b *testing.B) {
			x, y := alignedBytes(benchHidden*t.Size()), alignedBytes(benchHidden*t.Size())
			b.SetBytes(int64(2 * len(x)))
			for b.Loop() {
				Reduce(Sum, t, true, x, x, y)
			}
		})
	}
}

func BenchmarkDot(b *testing.B) {
	for _, t := range sumTypes {
		b.Run(t.String(), func(b *testing.B) {
			eachPathB(b, func(b *testing.B) {
				rows := benchRows(t, 2, benchHidden)
				b.SetBytes(int64(2 * benchHidden * t.Size()))
				var sink float32
				for b.Loop() {
					sink += Dot(t, rows[0], rows[1], benchHidden)
				}
				if math.IsNaN(float64(sink)) {
					b.Fatal("NaN")
				}
			})
		})
	}
}

func BenchmarkQuantize(b *testing.B) {
	eachPathB(b, func(b *testing.B) {
		src := benchRows(BF16, 1, benchHidden)[0]
		q, scales := alignedBytes(benchHidden), alignedBytes(4*benchHidden/QuantGroup)
		b.SetBytes(3 * benchHidden)
		for b.Loop() {
			QuantizeE4M3(BF16, pointer(q), pointer(scales), src, benchHidden, ScaleF32)
		}
	})
}

// BenchmarkFanOut copies rows of 14336 bytes: cached writes the same rows again, cold walks through
// 256 MiB.
func BenchmarkFanOut(b *testing.B) {
	const row = 2 * benchHidden
	big := alignedBytes(256 << 20)
	for i := 0; i < len(big); i += 4096 {
		big[i] = 1
	}
	for _, k := range []int{1, 8} {
		for _, where := range []string{"cached", "cold"} {
			for _, stream := range []bool{false, true} {
				b.Run(fmt.Sprintf("%dx/%s/stream=%t", k, where, stream), func(b *testing.B) {
					eachPathB(b, func(b *testing.B) {
						src := pointer(alignedBytes(row))
						dst := make([]unsafe.Pointer, k)
						for i := range dst {
							dst[i] = unsafe.Pointer(&big[i*row])
						}
						b.SetBytes(int64(k * row))
						off := 0
						for b.Loop() {
							if where == "cold" {
								for i := range dst {
									if off += row; off+row > len(big) {
										off = 0
									}
									dst[i] = unsafe.Pointer(&big[off])
								}
							}
							FanOut(dst, src, row, stream)
						}
						StoreFence()
					})
				})
			}
		}
	}
}

func BenchmarkFMA32(b *testing.B) {
	x := float32(1)
	for b.Loop() {
		x = FMA32(0.999, x, 0.25)
	}
	if x != x {
		b.Fatal("NaN")
	}
}

// BenchmarkSmall is the fixed cost of a call.
func BenchmarkSmall(b *testing.B) {
	x, y := make([]float32, 2), make([]float32, 2)
	b.Run("reduce", func(b *testing.B) {
		srcs := [][]byte{bytesOf(x), bytesOf(y)}
		for b.Loop() {
			Reduce(Sum, F32, false, srcs[0], srcs...)
		}
	})
	b.Run("skipped row", func(b *testing.B) {
		rows, w := []unsafe.Pointer{unsafe.Pointer(&x[0]), nil, unsafe.Pointer(&y[0])}, []float32{1, 2, 3}
		for b.Loop() {
			WeightedSum(F32, unsafe.Pointer(&x[0]), len(x), rows, w, nil)
		}
	})
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			Copy(unsafe.Pointer(&x[0]), unsafe.Pointer(&y[0]), 8, false)
		}
	})
}

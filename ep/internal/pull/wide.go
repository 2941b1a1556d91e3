package pull

import (
	"unsafe"

	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/simd"
)

// wideSum sums rows of a type into one of fp32, which is not rounded: fused, in their order, from +0. room is for a row
// of fp32.
func wideSum(t simd.Type, dst unsafe.Pointer, room []float32, rows []unsafe.Pointer, weights []float32) {
	n, row := len(room), []unsafe.Pointer{unsafe.Pointer(&room[0])}
	var sum []unsafe.Pointer // so far
	for i, r := range rows {
		widen(t, room, r)
		simd.WeightedSum(simd.F32, dst, n, row, weights[i:i+1], sum)
		sum = []unsafe.Pointer{dst}
	}
	if len(rows) == 0 {
		simd.Zero(dst, 4*n, false)
	}
}

// wideHome adds sums of fp32 at home, for rows of another type.
type wideHome struct {
	t    simd.Type
	sums []float32
	bias [spec.MostBiases][]float32
}

// newWideHome is nil where sums have the rows' type.
func newWideHome(h *host) *wideHome {
	if !h.exactSums() {
		return nil
	}
	w := &wideHome{t: element(h.Spec.Output), sums: h.room()}
	for i := range w.bias {
		w.bias[i] = h.room()
	}
	return w
}

// sum adds sums of fp32 to the biases, and rounds once.
func (w *wideHome) sum(dst unsafe.Pointer, sums, bias []unsafe.Pointer) {
	n := len(w.sums)
	var wide [spec.MostBiases]unsafe.Pointer
	for i, b := range bias {
		widen(w.t, w.bias[i], b)
		wide[i] = unsafe.Pointer(&w.bias[i][0])
	}
	simd.PlainSum(simd.F32, unsafe.Pointer(&w.sums[0]), n, sums, wide[:len(bias)])
	out := unsafe.Slice((*uint16)(dst), n)
	if w.t == simd.BF16 {
		for i, x := range w.sums {
			out[i] = simd.BF16FromF32(x)
		}
		return
	}
	for i, x := range w.sums {
		out[i] = simd.F16FromF32(x)
	}
}

// widen makes a row of bf16 or fp16 one of fp32.
func widen(t simd.Type, dst []float32, src unsafe.Pointer) {
	in := unsafe.Slice((*uint16)(src), len(dst))
	if t == simd.BF16 {
		for i, x := range in {
			dst[i] = simd.BF16ToF32(x)
		}
		return
	}
	for i, x := range in {
		dst[i] = simd.F16ToF32(x)
	}
}

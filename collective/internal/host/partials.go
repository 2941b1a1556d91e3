package host

import (
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// partials is how a call folds elements in two steps: within a host, and what came of that across hosts.
type partials struct {
	c    *call
	wide bool // partials are in fp32, and elements are not
}

func (c *call) partialsOf(exact bool) partials {
	switch c.DType {
	case weft.BFloat16, weft.Float16, weft.Float8E4M3, weft.Float8E5M2:
		return partials{c, exact}
	default:
		return partials{c, false}
	}
}

// ratio is how much larger a partial is than the elements.
func (p partials) ratio() int {
	if p.wide {
		return 4 / p.c.DType.Size()
	}
	return 1
}

// bytes are those of the partial of so many bytes of elements.
func (p partials) bytes(n int) int { return n * p.ratio() }

// within folds rows of elements to a partial.
func (p partials) within(dst []byte, rows [][]byte) {
	f := p.c.foldingWithin()
	if !p.wide {
		p.c.moves.Share(f, dst, rows)
		return
	}
	f.DType = weft.Float32
	p.wideRows(len(rows), len(dst), func(at, n int, wide [][]byte) {
		for k, r := range rows {
			widen(p.c.DType, wide[k], r[at/p.ratio():])
		}
		p.c.moves.Reduce(f, dst[at:at+n], wide, false)
	})
}

// across folds partials to elements.
func (p partials) across(dst []byte, rows [][]byte) {
	f := p.c.foldingAcross()
	if !p.wide {
		p.c.moves.Reduce(f, dst, rows, p.c.stream)
		return
	}
	f.DType = weft.Float32
	p.wideRows(1, len(rows[0]), func(at, n int, wide [][]byte) {
		h := p.c.hosts
		h.sums = h.sums[:0]
		for _, r := range rows {
			h.sums = append(h.sums, r[at:at+n])
		}
		p.c.moves.Reduce(f, wide[0], h.sums, false)
		narrow(p.c.DType, dst[at/p.ratio():], wide[0])
	})
}

// wideRows goes through n bytes of fp32 by blocks, with memory for so many rows of one.
func (p partials) wideRows(rows, n int, do func(at, n int, wide [][]byte)) {
	h := p.c.hosts
	h.wide = grown(h.wide, rows*foldBlock)
	wide := make([][]byte, rows)
	for at := 0; at < n; at += foldBlock {
		m := min(foldBlock, n-at)
		for k := range wide {
			wide[k] = h.wide[k*foldBlock:][:m]
		}
		do(at, m, wide)
	}
}

func elements[T any](b []byte, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// widen converts elements to as many numbers of fp32 as there is room for.
func widen(t weft.DType, dst, src []byte) {
	to := elements[float32](dst, len(dst)/4)
	switch t {
	case weft.BFloat16:
		convert(to, elements[uint16](src, len(to)), simd.BF16ToF32)
	case weft.Float16:
		convert(to, elements[uint16](src, len(to)), simd.F16ToF32)
	case weft.Float8E4M3:
		convert(to, elements[uint8](src, len(to)), simd.E4M3ToF32)
	default:
		convert(to, elements[uint8](src, len(to)), simd.E5M2ToF32)
	}
}

// narrow rounds numbers of fp32 to elements.
func narrow(t weft.DType, dst, src []byte) {
	from := elements[float32](src, len(src)/4)
	switch t {
	case weft.BFloat16:
		convert(elements[uint16](dst, len(from)), from, simd.BF16FromF32)
	case weft.Float16:
		convert(elements[uint16](dst, len(from)), from, simd.F16FromF32)
	case weft.Float8E4M3:
		convert(elements[uint8](dst, len(from)), from, simd.E4M3FromF32)
	default:
		convert(elements[uint8](dst, len(from)), from, simd.E5M2FromF32)
	}
}

func convert[T, F any](to []T, from []F, one func(F) T) {
	for i, x := range from {
		to[i] = one(x)
	}
}

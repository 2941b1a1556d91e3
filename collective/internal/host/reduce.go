package host

import (
	"unsafe"

	"github.com/weftgo/weft"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/simd"
)

// reduce folds rows, which are in rank order, into dst. Every algorithm hands it the inputs of all ranks
// for some range of elements, so all of them give the same bits. With stream the result bypasses the
// caches.
func (c *call) reduce(dst []byte, rows [][]byte, stream bool) {
	if !stream {
		c.fold(dst, rows)
		return
	}
	pieces := c.pieces[:len(rows)]
	for at := 0; at < len(dst); at += len(c.bounce) {
		n := min(len(c.bounce), len(dst)-at)
		for i, r := range rows {
			pieces[i] = r[at : at+n]
		}
		c.fold(c.bounce[:n], pieces)
		simd.Copy(pointer(dst[at:]), pointer(c.bounce), n, true)
	}
	simd.StoreFence()
}

// fold is the only arithmetic of the package.
func (c *call) fold(dst []byte, rows [][]byte) {
	if c.Op == weft.PreMulSum {
		simd.PreMulSum(enginehost.Arithmetic(c.DType), c.given.Scalar.Data, dst, rows...)
	} else {
		enginehost.Fold(c.Op, c.DType, dst, rows...)
	}
}

// stage puts a payload where others read it.
func (c *call) stage(dst, src []byte) {
	start, past := c.staging.begin(len(src))
	simd.Copy(pointer(dst), pointer(src), len(src), past)
	if past {
		simd.StoreFence()
	}
	c.staging.end(start, len(src))
}

// share reduces rows to where others read the result.
func (c *call) share(dst []byte, rows [][]byte) {
	start, past := c.sharing.begin(len(dst))
	c.reduce(dst, rows, past)
	c.sharing.end(start, len(dst))
}

// copy fetches what others have published.
func (c *call) copy(dst, src []byte) {
	simd.Copy(pointer(dst), pointer(src), min(len(dst), len(src)), c.stream)
	if c.stream {
		simd.StoreFence()
	}
}

// move is copy for operands that may be the same memory.
func (c *call) move(dst, src []byte) {
	if pointer(dst) != pointer(src) {
		c.copy(dst, src)
	}
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

package host

import (
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"
)

// reduce folds rows, which are in rank order, into dst. Every algorithm hands it the inputs of all ranks
// for some range of elements, so all of them give the same bits. With stream the result bypasses the
// caches. Between hosts floats are folded as hierarchical does.
func (c *call) reduce(dst []byte, rows [][]byte, stream bool) {
	if c.hosts.orders(c) {
		c.hosts.fold(c, dst, rows)
		return
	}
	c.moves.Reduce(c.folding(), dst, rows, stream)
}

func (c *call) folding() enginehost.Folding {
	return enginehost.Folding{Op: c.Op, DType: c.DType, Scalar: c.given.Scalar.Data}
}

// stage puts a payload where others read it.
func (c *call) stage(dst, src []byte) { c.moves.Stage(dst, src) }

// share reduces rows to where others read the result.
func (c *call) share(dst []byte, rows [][]byte) {
	if c.hosts.orders(c) {
		c.hosts.fold(c, dst, rows)
		return
	}
	c.moves.Share(c.folding(), dst, rows)
}

// copy fetches what others have published.
func (c *call) copy(dst, src []byte) { c.moves.Copy(dst, src, c.stream) }

// move is copy for operands that may be the same memory.
func (c *call) move(dst, src []byte) {
	if pointer(dst) != pointer(src) {
		c.copy(dst, src)
	}
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

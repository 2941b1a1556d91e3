package gpu

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/device"
)

// Reduction is what an all-reduce, a reduce-scatter or a reduce does.
type Reduction struct {
	Out, In  uint64 // addresses; Out is 0 where a rank has no result
	Elements int    // of the result
	DType    weft.DType
	Op       weft.Op
	// A pre-multiplied sum multiplies by Scalar, in the accumulator's type, or by what stands at
	// ScalarAt in the GPU's memory, if that is not 0.
	Scalar, ScalarAt uint64
}

func (r *Reduction) bytes() int { return r.Elements * r.DType.Size() }

// how says what a reduction does with rows: the How of fold.cuh.
type how struct {
	op, _      uint32
	scalar, at uint64
}

func (r *Reduction) how() how { return how{op: uint32(r.Op), scalar: r.Scalar, at: r.ScalarAt} }

// allReduceArgs are the AllReduce of all_reduce.cuh.
type allReduceArgs struct {
	lane      laneArgs
	in, out   operand
	how       how
	slotBytes uint64
	group     device.Group
}

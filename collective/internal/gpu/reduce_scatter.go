package gpu

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// reduceScatterArgs are the ReduceScatter of reduce_scatter.cu.
type reduceScatterArgs struct {
	lane                           laneArgs
	in, out                        operand
	how                            how
	partBytes, partStep, slotBytes uint64
	root                           int32
	_                              uint32
	group                          device.Group
}

// reduceScatter sends every rank that has a result its part of every input.
type reduceScatter struct {
	enginegpu.Launch[reduceScatterArgs]
}

func reduceScatterSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("reduce-scatter of %v", d), "reduce_scatter.cu", t,
		unsafe.Sizeof(reduceScatterArgs{}), reducing(d))
}

// ReduceScatter enqueues a reduce-scatter: In has a part for each rank.
func (e *Engine) ReduceScatter(stream *cuda.Stream, r *Reduction) error {
	return e.reduceParts(stream, r, opReduceScatter, -1)
}

// Reduce enqueues a reduce to one rank.
func (e *Engine) Reduce(stream *cuda.Stream, r *Reduction, root int) error {
	return e.reduceParts(stream, r, opReduce, root)
}

func (e *Engine) reduceParts(stream *cuda.Stream, r *Reduction, op uint32, root int) error {
	k, part := &e.reductions[r.DType].reduceScatter, r.bytes()
	most := encodingOf(r.DType).capacity(e.turnBytes / e.ranks)
	for at := 0; at < part; at += most {
		n := min(part-at, most)
		slot := encodingOf(r.DType).slotSize(n)
		a := k.Args
		a.lane, a.group, a.how, a.slotBytes = e.laneOf(op, e.ranks*slot), e.group, r.how(), uint64(slot)
		a.in, a.out = operandAt(r.In+uint64(at), part, part), operandAt(r.Out+uint64(at), n, 0)
		a.partBytes, a.partStep, a.root = uint64(n), uint64(part), int32(root)
		k.SetGrid(e.grid(vectors(n)))
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

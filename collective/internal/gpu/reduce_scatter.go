package gpu

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// reduceScatterHead is the beginning of the ReduceScatter of reduce_scatter.cu.
type reduceScatterHead struct {
	lane                           laneArgs
	in, out                        operand
	how                            how
	partBytes, partStep, slotBytes uint64
	root                           int32
	full                           uint32
}

// reduceScatterArgs are the ReduceScatter for parts of one length, reduceScatterVArgs that for others.
type (
	reduceScatterArgs struct {
		reduceScatterHead
		group device.Group
	}
	reduceScatterVArgs struct {
		reduceScatterHead
		parts [device.MaxRanks]span // in bytes
		group device.Group
	}
)

// reduceScatter sends every rank that has a result its part of every input.
type reduceScatter struct {
	enginegpu.Launch[reduceScatterArgs]
}

// reduceScatterV does that with parts of different lengths.
type reduceScatterV struct {
	enginegpu.Launch[reduceScatterVArgs]
}

func reduceScatterSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("reduce-scatter of %v", d), "reduce_scatter.cu", t,
		unsafe.Sizeof(reduceScatterArgs{}), reducing(d))
}

func reduceScatterVSource(d weft.DType, t target) enginegpu.Source {
	defines := reducing(d)
	defines["WEFT_VARIES"] = "1"
	return source(fmt.Sprintf("reduce-scatter-v of %v", d), "reduce_scatter.cu", t,
		unsafe.Sizeof(reduceScatterVArgs{}), defines)
}

// ReduceScatter enqueues a reduce-scatter: In has a part for each rank.
func (e *Engine) ReduceScatter(stream *cuda.Stream, r *Reduction) error {
	return e.reduceParts(stream, r, opReduceScatter, -1)
}

// Reduce enqueues a reduce to one rank.
func (e *Engine) Reduce(stream *cuda.Stream, r *Reduction, root int) error {
	return e.reduceParts(stream, r, opReduce, root)
}

// partMost is how many bytes of a part one launch reduces at most.
func (e *Engine) partMost(t weft.DType) int { return slotCap(t, e.turnBytes, e.ranks) }

func (e *Engine) reduceParts(stream *cuda.Stream, r *Reduction, op uint32, root int) error {
	k, part, most := &e.reductions[r.DType].reduceScatter, r.bytes(), e.partMost(r.DType)
	for at := 0; at < part; at += most {
		n := min(part-at, most)
		a := k.Args
		a.reduceScatterHead, a.group = e.partsHead(r, op, n), e.group
		a.in, a.out = operandAt(r.In+uint64(at), part, part), operandAt(r.Out+uint64(at), n, 0)
		a.partStep, a.root = uint64(part), int32(root)
		if root < 0 {
			a.full = 1
		}
		if root < 0 && r.Op == weft.Sum {
			a.lane.plain = e.plain(a.in, a.out, n)
		}
		e.spread(k, vectors(n))
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

// partsHead is what launches have in common whose longest part has n bytes.
func (e *Engine) partsHead(r *Reduction, op uint32, n int) reduceScatterHead {
	slot := encodingOf(r.DType).slotSize(n)
	return reduceScatterHead{
		lane: e.laneOf(op, e.ranks*slot), how: r.how(), partBytes: uint64(n), slotBytes: uint64(slot), root: -1,
	}
}

// startReduceScatterV enqueues a reduce-scatter-v. All ranks know all counts, so they agree on the
// launches, and on which of them some rank has nothing of.
func (e *Engine) startReduceScatterV(stream *cuda.Stream, c *spec.Call) error {
	r := e.reduction(c)
	k, most := &e.reductions[c.DType].reduceScatterV, e.partMost(c.DType)
	_, own := c.InputPart(e.comm.Rank())
	for at := 0; at < c.Bytes; at += most {
		n := min(c.Bytes-at, most)
		a := k.Args
		a.reduceScatterHead, a.group, a.full = e.partsHead(&r, opReduceScatterV, n), e.group, 1
		a.in, a.out = operandAt(r.In, c.In.Bytes(), 0), operandAt(r.Out+uint64(at), min(max(own-at, 0), n), 0)
		for p := range e.ranks {
			from, bytes := c.InputPart(p)
			bytes = min(max(bytes-at, 0), n)
			a.parts[p] = span{uint64(from + at), uint64(bytes)}
			if bytes == 0 && !e.comm.Masked(p) {
				a.full = 0
			}
		}
		e.spread(k, vectors(n))
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

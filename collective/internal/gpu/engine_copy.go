package gpu

import (
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
)

// startCopies enqueues an all-gather or an all-to-all into outputs that lie in windows, whose data the GPUs' copy
// engines move: no SM is busy between two barriers of one block. Ranks copy to the next one first, then to the one
// after it, so that no two copy to the same.
//
// Barriers are kernels and copies are nodes of a graph where one is captured, so replays need no more.
//
// A copy does not know how the barrier before it ended. Where that gave up on a rank, copies still run, and write into
// the output of that rank, which has not made the call. Kernels write nothing then.
func (e *Engine) startCopies(stream *cuda.Stream, c *spec.Call) error {
	if c.Bytes == 0 {
		return nil
	}
	op, step := uint32(opAllGather), 0
	if c.Collective == spec.AllToAll {
		op, step = opAllToAll, c.Bytes
	}
	in, _ := e.addresses(c)
	outs, _ := e.find(c.Out)
	if err := e.meet(stream, op); err != nil { // outputs may be written
		return err
	}
	me := int(e.group.Rank)
	for k := range e.ranks {
		to := (me + 1 + k) % e.ranks
		if e.comm.Masked(to) {
			continue
		}
		from, into := cuda.Pointer(in+uint64(to*step)), cuda.Pointer(outs[to]+uint64(me*c.Bytes))
		if from == into { // in place
			continue
		}
		if err := stream.Copy(into, from, c.Bytes); err != nil {
			return err
		}
	}
	return e.meet(stream, op)
}

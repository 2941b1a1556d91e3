package gpu

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// twoShot sends every rank its part of every input, and every rank's result to all.
type twoShot struct {
	enginegpu.Launch[allReduceArgs]
}

func twoShotSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("two-shot all-reduce of %v", d), "all_reduce_two_shot.cu", t,
		unsafe.Sizeof(allReduceArgs{}), reducing(d))
}

// twoShotMost is how many bytes one launch reduces at most if so many ranks are live.
func (e *Engine) twoShotMost(t weft.DType, live int) int {
	return twoShotCap(t, e.turnBytes, e.ranks, live)
}

func (e *Engine) twoShot(stream *cuda.Stream, r *Reduction) error {
	live := e.live()
	k, most := &e.reductions[r.DType].twoShot, e.twoShotMost(r.DType, live)
	for at, bytes := 0, r.bytes(); at < bytes; at += most {
		n := min(bytes-at, most)
		part := (vectors(n) + live - 1) / live // the longest
		slot := encodingOf(r.DType).slotSize(part * vectorBytes)
		a := k.Args
		a.lane, a.group, a.how, a.slotBytes = e.laneOf(opAllReduce, 2*e.ranks*slot), e.group, r.how(), uint64(slot)
		a.in, a.out = operandAt(r.In+uint64(at), n, 0), operandAt(r.Out+uint64(at), n, 0)
		if r.Op == weft.Sum && live == e.ranks && n%(vectorBytes*live) == 0 {
			a.lane.plain = e.plain(a.in, a.out, n/live)
		}
		e.spread(k, part)
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

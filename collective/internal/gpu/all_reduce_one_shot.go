package gpu

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// oneShot sends every input to every rank.
type oneShot struct {
	enginegpu.Launch[allReduceArgs]
}

func oneShotSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("one-shot all-reduce of %v", d), "all_reduce_one_shot.cu", t,
		unsafe.Sizeof(allReduceArgs{}), reducing(d))
}

// oneShotMost is how many bytes one launch reduces at most.
func (e *Engine) oneShotMost(t weft.DType) int { return slotCap(t, e.turnBytes, e.ranks) }

func (e *Engine) oneShot(stream *cuda.Stream, r *Reduction) error {
	k, most := &e.reductions[r.DType].oneShot, e.oneShotMost(r.DType)
	for at, bytes := 0, r.bytes(); at < bytes; at += most {
		n := min(bytes-at, most)
		slot := encodingOf(r.DType).slotSize(n)
		a := k.Args
		a.lane, a.group, a.how, a.slotBytes = e.laneOf(opAllReduce, e.ranks*slot), e.group, r.how(), uint64(slot)
		a.in, a.out = operandAt(r.In+uint64(at), n, 0), operandAt(r.Out+uint64(at), n, 0)
		if r.Op == weft.Sum {
			a.lane.plain = e.plain(a.in, a.out, n)
		}
		e.spread(k, vectors(n))
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

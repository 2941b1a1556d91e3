package gpu

import (
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// barrierArgs are the Barrier of barrier.cu.
type barrierArgs struct {
	lane  laneArgs
	group device.Group
}

// barrier meets all ranks.
type barrier struct{ enginegpu.Launch[barrierArgs] }

func barrierSource(t target) enginegpu.Source {
	return source("barrier", "barrier.cu", t, unsafe.Sizeof(barrierArgs{}), map[string]string{})
}

// Barrier enqueues a barrier.
func (e *Engine) Barrier(stream *cuda.Stream) error { return e.meet(stream, opBarrier) }

// meet enqueues a barrier, as an operation or as part of one.
func (e *Engine) meet(stream *cuda.Stream, op uint32) error {
	a := e.barrier.Args
	a.lane, a.group = e.laneOf(op, 0), e.group
	e.spread(e.barrier, 1)
	return e.lane.Start(stream, e.barrier.Launch.Launch)
}

package gpu

import (
	"unsafe"

	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// multicastMoveArgs are the MulticastMove of multicast_move.cu.
type multicastMoveArgs struct {
	lane      laneArgs
	direct    directArgs
	in, bytes uint64
	outAt     uint64
	all       uint64
	sender    int32
	_         uint32
	outs      operands
	group     device.Group
}

// multicastMove stores data in the outputs of all ranks at once.
type multicastMove struct {
	enginegpu.Launch[multicastMoveArgs]
}

func multicastMoveSource(t target) enginegpu.Source {
	return source("multicast move", "multicast_move.cu", t, unsafe.Sizeof(multicastMoveArgs{}), map[string]string{})
}

// startMulticastMove enqueues an all-gather or a broadcast whose outputs lie in windows that reach all ranks.
func (e *Engine) startMulticastMove(stream *cuda.Stream, c *spec.Call) error {
	if c.Bytes == 0 {
		return nil
	}
	k := &e.multicastMove
	a := k.Args
	in, _ := e.addresses(c)
	a.lane, a.group, a.direct = e.laneOf(opAllGather, 0), e.group, e.direct
	a.in, a.bytes, a.sender = in, uint64(c.Bytes), -1
	a.outAt = uint64(e.comm.Rank() * c.Bytes)
	if c.Collective == spec.Broadcast {
		a.lane.op, a.sender, a.outAt = opBroadcast, int32(c.Root), 0
	}
	a.all = e.multicast(c.Out)
	a.outs, _ = e.find(c.Out)
	e.spread(k, vectors(c.Bytes))
	return e.lane.Start(stream, k.Launch.Launch)
}

package gpu

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// multicastReduceArgs are the MulticastReduce of multicast_reduce.cu.
type multicastReduceArgs struct {
	allIn, allOut uint64
	whole         uint64
	direct        directReduceArgs
}

// multicastReduce has the switch add up inputs.
type multicastReduce struct {
	enginegpu.Launch[multicastReduceArgs]
}

func multicastReduceSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("multicast reduction of %v", d), "multicast_reduce.cu", t,
		unsafe.Sizeof(multicastReduceArgs{}), reducing(d))
}

// startMulticastReduce enqueues an all-reduce in two shots, a reduce-scatter or a reduce.
func (e *Engine) startMulticastReduce(stream *cuda.Stream, c *spec.Call) error {
	return e.reduceByMulticast(stream, c, false)
}

// startMulticastOneShot enqueues an all-reduce in one shot.
func (e *Engine) startMulticastOneShot(stream *cuda.Stream, c *spec.Call) error {
	return e.reduceByMulticast(stream, c, true)
}

func (e *Engine) reduceByMulticast(stream *cuda.Stream, c *spec.Call, oneShot bool) error {
	if c.Bytes == 0 {
		return nil
	}
	k := e.reductions[c.DType].multicast
	a := k.Args
	owned := e.directReduction(&a.direct, c)
	a.allIn, a.allOut, a.whole = e.multicast(c.In), 0, 0
	switch {
	case oneShot:
		a.whole, a.direct.out, owned = 1, uint64(c.Out.Pointer()), c.Bytes
	case c.Collective == spec.AllReduce:
		a.allOut = e.multicast(c.Out)
	}
	e.spread(k, vectors(owned))
	return e.lane.Start(stream, k.Launch.Launch)
}

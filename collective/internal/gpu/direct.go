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

// directArgs are the Direct of direct.cuh.
type directArgs struct{ ready, done uint64 }

// layOutDirect adds the words by which blocks meet.
func (e *Engine) layOutDirect(window *enginegpu.Workspace) {
	size := 8 * int64(e.blocks) * int64(e.ranks)
	e.direct.ready = uint64(window.Zeros(size))
	e.direct.done = uint64(window.Zeros(size))
}

// operands are the addresses, by rank, of operands that lie in one window, at the same place on all
// ranks; those of masked ranks are not used.
type operands [device.MaxRanks]uint64

// find gives the addresses of an operand on all ranks, or none.
func (e *Engine) find(t weft.Tensor) (at operands, ok bool) {
	w, offset, ok := e.comm.Operations().Find(t.Data, t.Bytes())
	if !ok {
		return operands{}, false
	}
	if e.loop.ranks > 0 {
		return e.loop.operands(w, offset, t.Bytes()), true
	}
	for r := range e.comm.Size() {
		if e.comm.Masked(r) {
			continue
		}
		p := w.PeerPointer(r)
		if p == 0 {
			return operands{}, false // the rank was masked when the window was made
		}
		at[r] = uint64(p.Add(offset))
	}
	return at, true
}

// inputs are the addresses of a symmetric call's inputs, on all ranks. Those that are in place lie in outputs, each at
// its rank's part.
func (e *Engine) inputs(c *spec.Call) operands {
	if c.InPlace && c.Collective == spec.AllGather {
		return e.partsOf(c.Out, c.Bytes)
	}
	at, _ := e.find(c.In)
	return at
}

// outputs are those of its outputs.
func (e *Engine) outputs(c *spec.Call) operands {
	if c.InPlace && c.Collective == spec.ReduceScatter {
		return e.partsOf(c.In, c.Bytes)
	}
	at, _ := e.find(c.Out)
	return at
}

// partsOf are the addresses of every rank's part of an operand.
func (e *Engine) partsOf(t weft.Tensor, bytes int) operands {
	at, _ := e.find(t)
	for r := range e.ranks {
		if at[r] != 0 {
			at[r] += uint64(r * bytes)
		}
	}
	return at
}

// windows says which operands of a symmetric call lie in windows. It is the same on every rank: it looks at those
// alone that all ranks have alike.
func (e *Engine) windows(c *spec.Call) (w spec.Windows, err error) {
	if !c.Symmetric {
		return 0, nil
	}
	in, out := c.Collective.OperandsAlike()
	if in && e.inWindow(c, c.In) {
		w |= spec.Inputs
	}
	if out && e.inWindow(c, c.Out) {
		w |= spec.Outputs
	}
	if w == 0 && (in || out) {
		return 0, weft.Invalidf("%v: no operand of a symmetric call lies in a window", c.Collective)
	}
	if e.reached(c, w) {
		w |= spec.Multicast
	}
	return w, nil
}

// inWindow says whether peers reach an operand of a call, of which every rank has as much.
func (e *Engine) inWindow(c *spec.Call, t weft.Tensor) bool {
	_, ok := e.find(t)
	return ok || c.Bytes == 0
}

// directMoveArgs are the DirectMove of direct_move.cu.
type directMoveArgs struct {
	lane            laneArgs
	direct          directArgs
	in              operand
	outUnit         uint64
	partBytes       uint64
	inStep, outStep uint64
	sender          int32
	_               uint32
	outs            operands
	group           device.Group
}

// directMove stores data where it belongs in outputs of peers.
type directMove struct {
	enginegpu.Launch[directMoveArgs]
}

func directMoveSource(t target) enginegpu.Source {
	return source("direct move", "direct_move.cu", t, unsafe.Sizeof(directMoveArgs{}), map[string]string{})
}

// startDirectMove enqueues an all-gather, an all-to-all, a broadcast or a scatter whose outputs lie in windows.
func (e *Engine) startDirectMove(stream *cuda.Stream, c *spec.Call) error {
	if c.Bytes == 0 {
		return nil
	}
	in, out := e.addresses(c)
	op, sender, inStep, outStep := uint32(opAllGather), -1, 0, c.Bytes
	switch c.Collective {
	case spec.AllToAll:
		op, inStep = opAllToAll, c.Bytes
	case spec.Broadcast:
		op, sender, outStep = opBroadcast, c.Root, 0
	case spec.Scatter:
		op, sender, inStep, outStep = opScatter, c.Root, c.Bytes, 0
	}
	k := &e.directMove
	a := k.Args
	a.lane, a.group, a.direct = e.laneOf(op, 0), e.group, e.direct
	a.in = operandAt(in, c.Bytes, inStep)
	a.outs, _ = e.find(c.Out)
	a.outUnit = unitOf(out | uint64(c.Bytes))
	a.partBytes, a.inStep, a.outStep, a.sender = uint64(c.Bytes), uint64(inStep), uint64(outStep), int32(sender)
	e.spread(k, vectors(c.Bytes)*e.ranks)
	return e.lane.Start(stream, k.Launch.Launch)
}

// symmetric refuses a gather and a scatter that are in place at the root: there the root's operand does not lie
// where the others' do.
func symmetric(c *spec.Call) error {
	if c.InPlace && (c.Collective == spec.Gather || c.Collective == spec.Scatter) {
		return weft.Invalidf("%v: the root's operands are in place, so its own does not lie where the others' do; "+
			"the call is not symmetric", c.Collective)
	}
	return nil
}

// directReduceArgs are the DirectReduce of direct_reduce.cuh.
type directReduceArgs struct {
	lane            laneArgs
	direct          directArgs
	how             how
	bytes, partStep uint64
	unit, chunk     uint32
	root            int32
	_               uint32
	out             uint64
	ins, outs       operands
	group           device.Group
}

// directReduce reads inputs where they lie.
type directReduce struct {
	enginegpu.Launch[directReduceArgs]
}

func directReduceSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("direct reduction of %v", d), "direct_reduce.cu", t,
		unsafe.Sizeof(directReduceArgs{}), reducing(d))
}

// startDirectReduce enqueues an all-reduce, a reduce-scatter or a reduce whose inputs lie in windows.
func (e *Engine) startDirectReduce(stream *cuda.Stream, c *spec.Call) error {
	k := &e.reductions[c.DType].direct
	return e.reduceDirectly(stream, c, k.Launch, func(k launcher, owned int) { e.spread(k, vectors(owned)) })
}

// reduceDirectly enqueues a kernel of direct_reduce.cuh. shape sets its blocks for so many bytes of each row.
func (e *Engine) reduceDirectly(stream *cuda.Stream, c *spec.Call, k enginegpu.Launch[directReduceArgs],
	shape func(k launcher, owned int),
) error {
	if c.Bytes == 0 {
		return nil
	}
	shape(k, e.directReduction(k.Args, c))
	return e.lane.Start(stream, k.Launch)
}

// directReduction sets the arguments of a reduction of inputs that lie in windows. It returns how many bytes of each
// row a rank reduces.
func (e *Engine) directReduction(a *directReduceArgs, c *spec.Call) (owned int) {
	r := e.reduction(c)
	a.lane, a.group, a.direct, a.how = e.laneOf(opAllReduce, 0), e.group, e.direct, r.how()
	a.bytes, a.partStep, a.root, a.out = uint64(c.Bytes), 0, -1, 0
	a.ins, _ = e.find(c.In)
	owned = c.Bytes
	switch c.Collective {
	case spec.ReduceScatter:
		a.lane.op, a.partStep, a.out = opReduceScatter, uint64(c.Bytes), r.Out
	case spec.Reduce:
		a.lane.op, a.root, a.out = opReduce, int32(c.Root), r.Out
	default:
		a.outs, _ = e.find(c.Out)
		owned = (owned + e.live() - 1) / e.live()
	}
	a.unit = uint32(unitOf(r.In | r.Out | a.partStep))
	return owned
}

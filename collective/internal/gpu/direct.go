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

// find gives the addresses of an operand on all ranks.
func (e *Engine) find(t weft.Tensor) (at operands, ok bool) {
	w, offset, ok := e.comm.Operations().Find(t.Data, t.Bytes())
	if !ok {
		return at, false
	}
	for r := range e.comm.Size() {
		if e.comm.Masked(r) {
			continue
		}
		p := w.PeerPointer(r)
		if p == 0 {
			return at, false // the rank was masked when the window was made
		}
		at[r] = uint64(p.Add(offset))
	}
	return at, true
}

// windows says which operands of a symmetric call lie in windows. It is the same on every rank: an operand
// that a root alone has does not count, for no other rank can know.
func (e *Engine) windows(c *spec.Call) (w spec.Windows, err error) {
	if !c.Symmetric || e.comm.Size() < e.ranks { // in a loopback peers have no windows
		return 0, nil
	}
	const notRoot = -1
	if c.Collective.HasInput(notRoot, c.Root) {
		if _, ok := e.find(c.In); ok || c.In.Elems() == 0 {
			w |= spec.Inputs
		}
	}
	if c.Collective.HasOutput(notRoot, c.Root) {
		if _, ok := e.find(c.Out); ok || c.Out.Elems() == 0 {
			w |= spec.Outputs
		}
	}
	if w&(spec.Inputs|spec.Outputs) == 0 {
		return 0, weft.Invalidf("%v: no operand of a symmetric call lies in a window", c.Collective)
	}
	if c.InPlace && !c.Collective.Rooted() {
		w |= spec.InPlace
	}
	return w, nil
}

// directMoveArgs are the DirectMove of direct_move.cu.
type directMoveArgs struct {
	lane              laneArgs
	direct            directArgs
	in                operand
	outUnit           uint64
	partBytes, inStep uint64
	outs              operands
	group             device.Group
}

// directMove stores data where it belongs in outputs of peers.
type directMove struct {
	enginegpu.Launch[directMoveArgs]
}

func directMoveSource(t target) enginegpu.Source {
	return source("direct move", "direct_move.cu", t, unsafe.Sizeof(directMoveArgs{}), map[string]string{})
}

// startDirectMove enqueues an all-gather or an all-to-all whose outputs lie in windows.
func (e *Engine) startDirectMove(stream *cuda.Stream, c *spec.Call) error {
	if c.Bytes == 0 {
		return nil
	}
	op, step := uint32(opAllGather), 0
	if c.Collective == spec.AllToAll {
		op, step = opAllToAll, c.Bytes
	}
	k := &e.directMove
	a := k.Args
	a.lane, a.group, a.direct = e.laneOf(op, 0), e.group, e.direct
	a.in = operandAt(uint64(c.In.Pointer()), c.Bytes, step)
	a.outs, _ = e.find(c.Out)
	a.outUnit = unitOf(uint64(c.Out.Pointer()) | uint64(c.Bytes))
	a.partBytes, a.inStep = uint64(c.Bytes), uint64(step)
	k.SetGrid(e.grid(vectors(c.Bytes) * e.ranks))
	return e.lane.Start(stream, k.Launch.Launch)
}

// directReduceArgs are the DirectReduce of direct_reduce.cu.
type directReduceArgs struct {
	lane            laneArgs
	direct          directArgs
	how             how
	bytes, partStep uint64
	unit, _         uint32
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

// startDirectReduce enqueues an all-reduce or a reduce-scatter whose inputs lie in windows.
func (e *Engine) startDirectReduce(stream *cuda.Stream, c *spec.Call) error {
	if c.Bytes == 0 {
		return nil
	}
	k := &e.reductions[c.DType].direct
	r := e.reduction(c)
	a := k.Args
	a.lane, a.group, a.direct, a.how = e.laneOf(opAllReduce, 0), e.group, e.direct, r.how()
	a.bytes, a.partStep, a.out = uint64(c.Bytes), 0, uint64(c.Out.Pointer())
	work := vectors(c.Bytes)
	a.ins, _ = e.find(c.In)
	if c.Collective == spec.ReduceScatter {
		a.lane.op, a.partStep = opReduceScatter, uint64(c.Bytes)
	} else {
		a.outs, _ = e.find(c.Out)
		work = (work + e.live() - 1) / e.live()
	}
	a.unit = uint32(unitOf(uint64(c.In.Pointer()) | uint64(c.Out.Pointer()) | a.partStep))
	k.SetGrid(e.grid(work))
	return e.lane.Start(stream, k.Launch.Launch)
}

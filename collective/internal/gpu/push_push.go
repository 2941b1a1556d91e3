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

// pushArgs are the Push of push.cuh.
type pushArgs struct {
	lane          laneArgs
	direct        directArgs
	how           how
	in, out       operand
	rows, results uint64
	sent, got     uint64
	piece, ring   uint32
	outs          operands
	group         device.Group
}

// push sends rows to their owners in pieces, and results to all.
type push struct {
	enginegpu.Launch[pushArgs]
}

func pushSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("pushed reduction of %v", d), "push_push.cu", t, unsafe.Sizeof(pushArgs{}), reducing(d))
}

// pushStaging is where pieces stand on their way, and the counters for them, as offsets in the window.
type pushStaging struct {
	at        uint64
	bytes     int
	sent, got uint64
}

func (p *pushStaging) layOut(window *enginegpu.Workspace, staging, blocks, ranks int) {
	p.bytes = staging / 4
	p.at = uint64(window.Raw(int64(p.bytes)))
	for _, words := range []*uint64{&p.sent, &p.got} {
		*words = uint64(window.Zeros(8 * int64(blocks) * int64(ranks)))
	}
}

// Pieces have up to mostPiece bytes, and staging memory has pushDepth places for each block and rank: the DEPTH of
// push.cuh. More blocks than mostPushers would not fill the links better.
const (
	pushDepth   = 3
	mostPiece   = 32 << 10
	leastPiece  = 64
	mostPushers = 64
)

// startPushPush enqueues an all-reduce whose results go to all outputs, by way of staging memory where those are not
// in windows.
func (e *Engine) startPushPush(stream *cuda.Stream, c *spec.Call) error {
	l := &e.reductions[c.DType].large
	return e.pushReduction(stream, c, l.push, 0)
}

// startPushRing enqueues an all-reduce whose results go round.
func (e *Engine) startPushRing(stream *cuda.Stream, c *spec.Call) error {
	l := &e.reductions[c.DType].large
	return e.pushReduction(stream, c, l.push, 1)
}

// relaxedSource is a kernel of the same parameter, whose partial results go round and are rounded at every hop.
func relaxedSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("relaxed ring of %v", d), "relaxed_ring.cu", t, unsafe.Sizeof(pushArgs{}), reducing(d))
}

const relaxedRing = "all-reduce/relaxed-ring"

// relaxable: hops keep no more of a sum of integers than the type holds, so there is no average.
func relaxable(q spec.Request) bool { return q.Op != weft.Avg || encodingOf(q.DType) != pairs }

// startRelaxedRing enqueues an all-reduce whose bits are its own.
func (e *Engine) startRelaxedRing(stream *cuda.Stream, c *spec.Call) error {
	return e.pushReduction(stream, c, e.reductions[c.DType].relaxed, 1)
}

// pushReduction enqueues a launch of a kernel.
func (e *Engine) pushReduction(stream *cuda.Stream, c *spec.Call, k push, ring uint32) error {
	if c.Bytes == 0 {
		return nil
	}
	r := e.reduction(c)
	a := k.Args
	a.outs = operands{}
	if c.Symmetric {
		a.outs, _ = e.find(c.Out)
	}
	a.rows, a.results = e.push.at, e.push.at
	room := e.push.bytes
	if a.outs[e.group.Rank] == 0 {
		room /= 2
		a.results += uint64(room &^ (vectorBytes - 1))
	}
	room /= pushDepth * e.ranks
	blocks := min(e.most, mostPushers, room/leastPiece)
	if blocks == 0 {
		return weft.Unsupportedf("%v: staging memory of %d bytes is too little for pieces of %d ranks", c.Collective,
			4*e.push.bytes, e.ranks)
	}
	piece := min(room/blocks&^(vectorBytes-1), mostPiece)
	share := (vectors(c.Bytes) + e.live() - 1) / e.live() * vectorBytes // the longest
	a.lane, a.group, a.direct, a.how = e.laneOf(opAllReduce, 0), e.group, e.direct, r.how()
	a.in, a.out = operandAt(r.In, c.Bytes, 0), operandAt(r.Out, c.Bytes, 0)
	a.sent, a.got = e.push.sent, e.push.got
	a.piece, a.ring = uint32(piece), ring
	grid := e.launched((share + piece - 1) / piece)
	grid.X = min(grid.X, uint32(blocks)) // staging memory has places for no more
	k.SetGrid(grid)
	return e.lane.Start(stream, k.Launch.Launch)
}

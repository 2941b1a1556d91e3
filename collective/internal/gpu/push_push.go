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
	taken         uint64
	piece, places uint32
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
	at               uint64
	bytes            int
	sent, got, taken uint64
}

func (p *pushStaging) layOut(window *enginegpu.Workspace, staging, blocks, ranks int) {
	p.bytes = staging / pushShare
	p.at = uint64(window.Raw(int64(p.bytes)))
	for _, words := range []*uint64{&p.sent, &p.got, &p.taken} {
		*words = uint64(window.Zeros(8 * int64(blocks) * int64(ranks)))
	}
}

// Pieces have a byte of staging memory for each pushShare bytes of slots. It has pushDepth places for each block and
// pair of ranks: the DEPTH of push.cuh. A piece has mostPiece bytes at most. Those of a short operand are shorter, down
// to usualPiece, so that a block has enoughTurns of them: until the first has come through all crews, links are not
// full.
const (
	pushShare   = 2
	pushDepth   = 3
	mostPiece   = 16 << 10
	usualPiece  = 4 << 10
	leastPiece  = 64
	enoughTurns = 8
)

// startPushPush enqueues an all-reduce whose results go to all outputs, by way of staging memory where those are not
// in windows.
func (e *Engine) startPushPush(stream *cuda.Stream, c *spec.Call) error {
	return e.pushReduction(stream, c, e.reductions[c.DType].push, max(1, e.ranks-1), e.blocks)
}

// relaxedSource is a kernel of the same parameter, whose partial results go round and are rounded at every hop.
func relaxedSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("relaxed ring of %v", d), "relaxed_ring.cu", t, unsafe.Sizeof(pushArgs{}), reducing(d))
}

const relaxedRing = "all-reduce/relaxed-ring"

// relaxable: hops keep no more of a sum of integers than the type holds, so there is no average.
func relaxable(q spec.Request) bool { return q.Op != weft.Avg || encodingOf(q.DType) != pairs }

// mostRound is how many blocks fill the links from a rank to the next one.
const mostRound = 64

// startRelaxedRing enqueues an all-reduce whose bits are its own.
func (e *Engine) startRelaxedRing(stream *cuda.Stream, c *spec.Call) error {
	return e.pushReduction(stream, c, e.reductions[c.DType].relaxed, e.ranks, mostRound)
}

// pushReduction enqueues a launch of a kernel that has so many places on each rank, and so many blocks at most.
func (e *Engine) pushReduction(stream *cuda.Stream, c *spec.Call, k push, places, most int) error {
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
	room /= pushDepth * places
	blocks := min(e.most, most, room/leastPiece)
	if blocks == 0 {
		return weft.Unsupportedf("%v: staging memory of %d bytes is too little for pieces of %d ranks", c.Collective,
			pushShare*e.push.bytes, e.ranks)
	}
	share := ceil(vectors(c.Bytes), e.live()) * vectorBytes // the longest
	piece := pieceOf(share, blocks, room/blocks&^(vectorBytes-1))
	a.lane, a.group, a.direct, a.how = e.laneOf(opAllReduce, 0), e.group, e.direct, r.how()
	a.in, a.out = operandAt(r.In, c.Bytes, 0), operandAt(r.Out, c.Bytes, 0)
	a.sent, a.got, a.taken = e.push.sent, e.push.got, e.push.taken
	a.piece, a.places = uint32(piece), uint32(places)
	grid := e.launched((share + piece - 1) / piece)
	grid.X = min(grid.X, uint32(blocks)) // staging memory has places for no more
	k.SetGrid(grid)
	return e.lane.Start(stream, k.Launch.Launch)
}

// pieceOf is how many bytes a piece of a share has, most at most, of which so many blocks have as many pieces. The last
// pieces of all blocks are about as long: blocks that have one more would send it over links that are not full.
func pieceOf(share, blocks, most int) int {
	most = min(most, mostPiece)
	least := min(usualPiece, most)
	longest := min(max(least, ceil(share, blocks*enoughTurns)), most)
	even := ceil(share, blocks*ceil(share, blocks*longest))
	return min(max(least, (even+lineBytes-1)&^(lineBytes-1)), most)
}

func ceil(a, b int) int { return (a + b - 1) / b }

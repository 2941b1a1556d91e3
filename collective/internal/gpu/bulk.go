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

// bulkThreads are those of a block that reduces what bulk copies bring.
const bulkThreads = 256

// carriers are the threads of a block that moves data by bulk copies: the CARRIERS of bulk_move.cu.
const carriers = 128

// A block that bulk copies pass through takes bulkShared bytes of shared memory, so that an SM holds two beside
// other kernels' blocks. More blocks than so many gain nothing.
const (
	bulkShared = 48 << 10

	mostPushing = 16 // of blocks that store at peers as well
	mostPulling = 12
)

// bulkGrid is how many blocks serve so many chunks, where there is room for so many.
func bulkGrid(chunks, room, most int) cuda.Dim {
	return cuda.Dim{X: uint32(max(1, min(chunks, room, most)))}
}

// bulkReduce reads inputs where they lie, by bulk copies.
type bulkReduce struct {
	enginegpu.Launch[directReduceArgs]
}

func bulkReduceSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("bulk reduction of %v", d), "bulk_reduce.cu", t,
		unsafe.Sizeof(directReduceArgs{}), reducing(d))
}

// stages is how many chunks of each row a block has: the STAGES of bulk_reduce.cu.
const stages = 3

// reduceChunk is how many bytes of a row a chunk has. Less would be slow.
func reduceChunk(ranks int) int { return max(512, bulkShared/stages/ranks&^127) }

// bulkReduce loads the kernel.
func (e *Engine) bulkReduce(k *bulkReduce, s enginegpu.Source) loading {
	chunk := reduceChunk(e.ranks)
	shape := e.bulkShape(bulkThreads, stages*e.ranks*chunk)
	return into(&k.Launch, s, shape, directReduceArgs{chunk: uint32(chunk)})
}

// bulkShape is the shape of launches that have so much shared memory where the GPU has bulk copies.
func (e *Engine) bulkShape(threads, shared int) cuda.LaunchConfig {
	if !e.bulk {
		shared = 0
	}
	return e.shape(threads, shared)
}

// startPullPush enqueues an all-reduce: every rank pulls its share of all inputs, and pushes the result to all.
func (e *Engine) startPullPush(stream *cuda.Stream, c *spec.Call) error {
	return e.bulkReduction(stream, c, mostPushing)
}

// startPull enqueues a reduce-scatter or a reduce.
func (e *Engine) startPull(stream *cuda.Stream, c *spec.Call) error {
	return e.bulkReduction(stream, c, mostPulling)
}

func (e *Engine) bulkReduction(stream *cuda.Stream, c *spec.Call, most int) error {
	l, chunk := &e.reductions[c.DType].large, reduceChunk(e.ranks)
	return e.reduceDirectly(stream, c, l.bulk.Launch, func(k launcher, owned int) {
		k.SetGrid(bulkGrid((owned+chunk-1)/chunk, e.most, most))
	})
}

// bulkMoveArgs are the BulkMove of bulk_move.cu.
type bulkMoveArgs struct {
	lane              laneArgs
	direct            directArgs
	partBytes, inStep uint64
	unit, chunk       uint32
	receiver          int32
	_                 uint32
	out               uint64
	ins               operands
	group             device.Group
}

// bulkMove reads what it moves where it lies.
type bulkMove struct {
	enginegpu.Launch[bulkMoveArgs]
}

func bulkMoveSource(t target) enginegpu.Source {
	return source("bulk move", "bulk_move.cu", t, unsafe.Sizeof(bulkMoveArgs{}), map[string]string{})
}

// moveChunk is how much a warp carries at a time.
const moveChunk = bulkShared / (carriers / warp)

// startBulkMove enqueues an all-gather, an all-to-all or a gather whose inputs lie in windows.
func (e *Engine) startBulkMove(stream *cuda.Stream, c *spec.Call) error {
	if c.Bytes == 0 {
		return nil
	}
	in, out := e.addresses(c)
	k := &e.bulkMove
	a := k.Args
	a.lane, a.group, a.direct = e.laneOf(opAllGather, 0), e.group, e.direct
	a.partBytes, a.inStep, a.receiver = uint64(c.Bytes), 0, -1
	switch c.Collective {
	case spec.AllToAll:
		a.lane.op, a.inStep = opAllToAll, uint64(c.Bytes)
	case spec.Gather:
		a.lane.op, a.receiver = opGather, int32(c.Root)
	}
	a.ins = e.inputs(c)
	a.out, a.unit = out, uint32(unitOf(in|out|uint64(c.Bytes)))
	chunks := (c.Bytes + moveChunk - 1) / moveChunk * e.ranks
	k.SetGrid(bulkGrid((chunks+carriers/warp-1)/(carriers/warp), e.most, mostPulling))
	return e.lane.Start(stream, k.Launch.Launch)
}

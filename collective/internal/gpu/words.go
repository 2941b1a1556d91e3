package gpu

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// mostCallWords is how many words a call may have: each has a count of blocks in local memory.
const mostCallWords = 16 << 10

// chunks are the Chunks of chunks.cuh.
type chunks struct {
	words, landed         uint64
	size, part, at, bytes uint64
	count, _              uint32
}

// allGatherProgressArgs are the AllGatherProgress of all_gather_progress.cu, and reduceScatterReadyArgs the
// ReduceScatterReady of reduce_scatter_ready.cu.
type (
	allGatherProgressArgs struct {
		lane               laneArgs
		in, out            operand
		chunks             chunks
		slotBytes, outStep uint64
		group              device.Group
	}
	reduceScatterReadyArgs struct {
		lane              laneArgs
		in, out           operand
		how               how
		chunks            chunks
		slotBytes, inStep uint64
		group             device.Group
	}
)

// withWords are the kernels of calls with words.
type withWords struct {
	gathers [encodings]enginegpu.Launch[allGatherProgressArgs]
	reduces [dtypes]enginegpu.Launch[reduceScatterReadyArgs]
	landed  uint64
}

func allGatherProgressSource(e encoding, t target) enginegpu.Source {
	return source(fmt.Sprintf("all-gather with progress by %v", e), "all_gather_progress.cu", t,
		unsafe.Sizeof(allGatherProgressArgs{}), moving(e))
}

func reduceScatterReadySource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("reduce-scatter when ready of %v", d), "reduce_scatter_ready.cu", t,
		unsafe.Sizeof(reduceScatterReadyArgs{}), reducing(d))
}

// prepareWords is Prepare for calls with words.
func (e *Engine) prepareWords(ctx context.Context, c *spec.Call) error {
	enc := encodingOf(c.DType)
	gather, reduce := &e.words.gathers[enc], &e.words.reduces[c.DType]
	gathers := c.Collective == spec.AllGather
	switch {
	case gathers && gather.Launch != nil || !gathers && reduce.Launch != nil:
		return nil
	case e.lane.Capture() != 0:
		return weft.Unsupportedf("%v: the kernels for %v and words are not loaded, and a capture cannot wait for that; "+
			"call it once before", c.Collective, c.DType)
	}
	k := into(reduce, reduceScatterReadySource(c.DType, e.target()), e.config(), reduceScatterReadyArgs{})
	if gathers {
		k = into(gather, allGatherProgressSource(enc, e.target()), e.config(), allGatherProgressArgs{})
	}
	return e.load(ctx, k)
}

// checkWords refuses more words than there are counts for.
func (e *Engine) checkWords(c *spec.Call) error {
	if n := c.Words.Of(c.Collective).Elems(); c.Words.Given() && n > mostCallWords {
		return weft.Unsupportedf("%v: %d words; there may be %d on GPUs", c.Collective, n, mostCallWords)
	}
	return nil
}

// eachLaunch calls start for the launches of a call with words: each has so many bytes of every part. There is one
// for parts of no bytes, too, which raises words.
func (e *Engine) eachLaunch(c *spec.Call, start func(k chunks, n, slot int) error) error {
	t, enc := c.Words.Of(c.Collective), encodingOf(c.DType)
	k := chunks{words: uint64(t.Pointer()), landed: e.words.landed, part: uint64(c.Bytes)}
	k.count = uint32(t.Elems() / e.ranks)
	k.size = uint64(spec.Chunk(c.Bytes, int(k.count)))
	most := enc.capacity(e.turnBytes / e.ranks)
	for at := 0; at == 0 || at < c.Bytes; at += most {
		n := min(c.Bytes-at, most)
		k.at, k.bytes = uint64(at), uint64(n)
		if err := start(k, n, enc.slotSize(n)); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) startAllGatherProgress(stream *cuda.Stream, c *spec.Call) error {
	l := &e.words.gathers[encodingOf(c.DType)]
	in, out := e.addresses(c)
	return e.eachLaunch(c, func(k chunks, n, slot int) error {
		a := l.Args
		a.lane, a.group = e.laneOf(opAllGather, e.ranks*slot), e.group
		a.in, a.out = operandAt(in+k.at, n, 0), operandAt(out+k.at, n, c.Bytes)
		a.chunks, a.slotBytes, a.outStep = k, uint64(slot), uint64(c.Bytes)
		e.spread(l, 2*vectors(n)) // half of the blocks send
		return e.lane.Start(stream, l.Launch)
	})
}

func (e *Engine) startReduceScatterReady(stream *cuda.Stream, c *spec.Call) error {
	l, r := &e.words.reduces[c.DType], e.reduction(c)
	return e.eachLaunch(c, func(k chunks, n, slot int) error {
		a := l.Args
		a.lane, a.group, a.how = e.laneOf(opReduceScatter, e.ranks*slot), e.group, r.how()
		a.in, a.out = operandAt(r.In+k.at, n, c.Bytes), operandAt(r.Out+k.at, n, 0)
		a.chunks, a.slotBytes, a.inStep = k, uint64(slot), uint64(c.Bytes)
		e.spread(l, vectors(n))
		return e.lane.Start(stream, l.Launch)
	})
}

package gpu

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// moveArgs are the Move of move.cu.
type moveArgs struct {
	lane                 laneArgs
	in, out              operand
	partBytes, slotBytes uint64
	inStep, outStep      uint64
	sender, receiver     int32
	group                device.Group
}

// move sends parts of inputs to where they belong in outputs.
type move struct{ enginegpu.Launch[moveArgs] }

func moveSource(e encoding, t target) enginegpu.Source {
	return source(fmt.Sprintf("move by %v", e), "move.cu", t, unsafe.Sizeof(moveArgs{}), moving(e))
}

// Transfer is data that is moved as it is.
type Transfer struct {
	Out, In uint64     // addresses; 0 where a rank has none
	Part    int        // bytes that a rank sends to a rank
	DType   weft.DType // of the elements
}

// AllGather enqueues an all-gather: Out has a part of each rank.
func (e *Engine) AllGather(stream *cuda.Stream, t Transfer) error {
	return e.move(stream, &t, opAllGather, false, true, -1, -1)
}

// AllToAll enqueues an all-to-all: In has a part for each rank, and Out one of each.
func (e *Engine) AllToAll(stream *cuda.Stream, t Transfer) error {
	return e.move(stream, &t, opAllToAll, true, true, -1, -1)
}

// Broadcast enqueues a broadcast: Out gets root's In.
func (e *Engine) Broadcast(stream *cuda.Stream, t Transfer, root int) error {
	return e.move(stream, &t, opBroadcast, false, false, root, -1)
}

// Gather enqueues a gather: root's Out has a part of each rank.
func (e *Engine) Gather(stream *cuda.Stream, t Transfer, root int) error {
	return e.move(stream, &t, opGather, false, true, -1, root)
}

// Scatter enqueues a scatter: root's In has a part for each rank.
func (e *Engine) Scatter(stream *cuda.Stream, t Transfer, root int) error {
	return e.move(stream, &t, opScatter, true, false, root, -1)
}

// move enqueues a move. inParts and outParts say which operands have a part for each rank; sender and
// receiver are the only one, or -1.
func (e *Engine) move(stream *cuda.Stream, t *Transfer, op uint32, inParts, outParts bool, sender, receiver int) error {
	enc := encodingOf(t.DType)
	k, most := &e.moves[enc], slotCap(t.DType, e.turnBytes, e.ranks)
	inStep, outStep := 0, 0
	if inParts {
		inStep = t.Part
	}
	if outParts {
		outStep = t.Part
	}
	for at := 0; at < t.Part; at += most {
		n := min(t.Part-at, most)
		slot := enc.slotSize(n)
		a := k.Args
		a.lane, a.group, a.slotBytes, a.partBytes = e.laneOf(op, e.ranks*slot), e.group, uint64(slot), uint64(n)
		a.in, a.out = operandAt(t.In+uint64(at), t.Part, inStep), operandAt(t.Out+uint64(at), t.Part, outStep)
		a.inStep, a.outStep = uint64(inStep), uint64(outStep)
		a.sender, a.receiver = int32(sender), int32(receiver)
		if sender < 0 && receiver < 0 {
			a.lane.plain = e.plain(a.in, a.out, n)
		}
		e.spread(k, vectors(n))
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

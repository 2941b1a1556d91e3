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

// span is a part of an operand, in elements: the Span of move_v.cu.
type span struct{ from, count uint64 }

// moveVArgs are the MoveV of move_v.cu. Kernel parameters of 72 ranks take 3 KiB of the 4 that there are.
type moveVArgs struct {
	lane                laneArgs
	in, out             operand
	stageBytes, credits uint64
	counts              [4]uint64
	element, groups     uint32
	sends, receives     [device.MaxRanks]span
	group               device.Group
}

// moveV moves parts of different lengths.
type moveV struct{ enginegpu.Launch[moveVArgs] }

func moveVSource(e encoding, t target) enginegpu.Source {
	return source(fmt.Sprintf("move of parts by %v", e), "move_v.cu", t, unsafe.Sizeof(moveVArgs{}), moving(e))
}

// headerBytes is what a rank tells another in an operation of parts of different lengths.
const headerBytes = 16

// Credit is given for groups of vectors, those of a warp.
const (
	groupVectors = 32
	creditBytes  = 8
)

// stageOf is how many bytes of slots a source has in each half of a turn: whole groups.
func (e *Engine) stageOf(enc encoding) int {
	group := groupVectors * enc.vectorSlot()
	return (e.turnBytes/e.ranks - headerBytes) / 2 / group * group
}

// leastTurn is how many bytes a turn has at least.
func leastTurn(ranks int) int { return ranks * (headerBytes + 2*groupVectors*pairs.vectorSlot()) }

// creditsOf is how many bytes the credits of a turn take.
func creditsOf(turnBytes int) int64 {
	return int64(turnBytes / 2 / (groupVectors * vectorBytes) * creditBytes)
}

func (e *Engine) startMoveV(stream *cuda.Stream, c *spec.Call) error {
	op := uint32(opAllGatherV)
	if c.Collective == spec.AllToAllV {
		op = opAllToAllV
	}
	in, out := e.addresses(c)
	enc, size := encodingOf(c.DType), max(c.DType.Size(), 1) // empty operands may have no type
	k := &e.movesV[enc]
	a, stage := k.Args, e.stageOf(enc)
	a.lane, a.group = e.laneOf(op, 0), e.group
	a.lane.clear = 1 // a slot is used again within the operation
	a.in, a.out = operandAt(in, c.In.Bytes(), 0), operandAt(out, c.Out.Bytes(), 0)
	a.stageBytes, a.element = uint64(stage), uint32(size)
	a.credits, a.groups = e.credits, uint32(stage/(groupVectors*enc.vectorSlot()))
	longest := max(c.In.Bytes(), c.Out.Bytes())
	a.counts = [4]uint64{}
	if d := &c.DeviceCounts; !d.Send.IsZero() {
		for i, t := range []weft.Tensor{d.Send, d.SendAt, d.Recv, d.RecvAt} {
			a.counts[i] = uint64(t.Pointer())
		}
	} else {
		longest = 0
		for r := range e.ranks {
			from, n := c.InputPart(r)
			to, m := c.OutputPart(r)
			a.sends[r] = span{uint64(from / size), uint64(n / size)}
			a.receives[r] = span{uint64(to / size), uint64(m / size)}
			longest = max(longest, n, m)
		}
	}
	e.spread(k, min(vectors(longest), stage/enc.vectorSlot()))
	return e.lane.Start(stream, k.Launch.Launch)
}

// What a record of a mismatch is about, in its highest bits: OTHER_SENT and so on of move_v.cu.
const (
	aboutBit = 62

	aboutMessages = 0 // of message.cu
	otherSent     = 1
	otherExpected = 2
	ownCounts     = 3
)

// mismatch says how the counts of two ranks differ: those of a record of move_v.cu, or of message.cu.
func mismatch(theirs, ours uint64) string {
	switch n := ours & (1<<aboutBit - 1); ours >> aboutBit {
	case aboutMessages:
		return messagesDiffer(theirs, ours)
	case otherSent:
		return fmt.Sprintf("it sends %d elements to this rank, which expects %d", theirs, n)
	case otherExpected:
		return fmt.Sprintf("it expects %d elements of this rank, which sends %d", theirs, n)
	case ownCounts:
		return fmt.Sprintf("its counts for rank %d on the GPU do not fit its operands", n)
	}
	return ""
}

// mirrored gives a difference as the peer's record has it. One of ownCounts has no peer.
func mirrored(theirs, ours uint64) (uint64, uint64) {
	const count = 1<<aboutBit - 1
	switch ours >> aboutBit {
	case aboutMessages:
		const receives = 1 << wordBits
		return ours &^ receives, theirs | ^ours&receives
	case otherSent:
		return ours & count, otherExpected<<aboutBit | theirs&count
	default:
		return ours & count, otherSent<<aboutBit | theirs&count
	}
}

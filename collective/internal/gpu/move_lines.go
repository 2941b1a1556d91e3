package gpu

import (
	"unsafe"

	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// moveLinesArgs are the MoveLines of move_lines.cu.
type moveLinesArgs struct {
	lane                 laneArgs
	in, out              operand
	partBytes, slotBytes uint64
	inStep, outStep      uint64
	group                device.Group
}

// moveLines moves any bytes by lines that have a flag.
type moveLines struct {
	enginegpu.Launch[moveLinesArgs]
}

func moveLinesSource(t target) enginegpu.Source {
	return source("move by lines", "move_lines.cu", t, unsafe.Sizeof(moveLinesArgs{}), map[string]string{})
}

// A warp moves linesData bytes at a time, in linesSlot bytes of slots.
const (
	linesData = 4 * 120
	linesSlot = 4 * 128
)

// startMoveLines enqueues an all-gather or an all-to-all.
func (e *Engine) startMoveLines(stream *cuda.Stream, c *spec.Call) error {
	op, inStep := uint32(opAllGather), 0
	if c.Collective == spec.AllToAll {
		op, inStep = opAllToAll, c.Bytes
	}
	in, out := e.addresses(c)
	k, most := &e.moveLines, e.turnBytes/e.ranks/linesSlot*linesData
	for at := 0; at < c.Bytes; at += most {
		n := min(c.Bytes-at, most)
		steps := (n + linesData - 1) / linesData
		a := k.Args
		a.lane, a.group = e.laneOf(op, e.ranks*steps*linesSlot), e.group
		a.partBytes, a.slotBytes, a.inStep = uint64(n), uint64(steps*linesSlot), uint64(inStep)
		a.outStep = uint64(c.Bytes)
		a.in, a.out = operandAt(in+uint64(at), n, inStep), operandAt(out+uint64(at), n, c.Bytes)
		e.spread(k, 32*steps)
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

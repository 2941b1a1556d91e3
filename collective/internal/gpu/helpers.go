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

// helpersBroadcastArgs are the HelpersBroadcast of helpers_broadcast.cu.
type helpersBroadcastArgs struct {
	lane      laneArgs
	in, out   operand
	slotBytes uint64
	root      int32
	_         uint32
	group     device.Group
}

// helpersBroadcast sends each helper a share, which it sends on.
type helpersBroadcast struct {
	enginegpu.Launch[helpersBroadcastArgs]
}

func helpersBroadcastSource(e encoding, t target) enginegpu.Source {
	return source(fmt.Sprintf("broadcast with helpers by %v", e), "helpers_broadcast.cu", t,
		unsafe.Sizeof(helpersBroadcastArgs{}), moving(e))
}

// helpersReduceArgs are the HelpersReduce of helpers_reduce.cu.
type helpersReduceArgs struct {
	lane      laneArgs
	in, out   operand
	how       how
	slotBytes uint64
	root      int32
	_         uint32
	group     device.Group
}

// helpersReduce sends helpers their shares, and the root what they make of them.
type helpersReduce struct {
	enginegpu.Launch[helpersReduceArgs]
}

func helpersReduceSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("reduce of %v with helpers", d), "helpers_reduce.cu", t,
		unsafe.Sizeof(helpersReduceArgs{}), reducing(d))
}

// leastHelped is how many ranks an operation with helpers has at least: with one helper data would only make a
// detour.
const leastHelped = 3

func helped(k spec.Collective, run start) *algorithm {
	a := costed(k, "helpers", nil, run)
	a.Supports = func(q spec.Request) bool { return q.Ranks >= leastHelped }
	return a
}

// startHelpersBroadcast enqueues a broadcast.
func (e *Engine) startHelpersBroadcast(stream *cuda.Stream, c *spec.Call) error {
	enc, helpers := encodingOf(c.DType), e.live()-1
	in, out := e.addresses(c)
	k, most := &e.helpersBroadcasts[enc], helpers*enc.capacity(e.turnBytes/e.ranks)
	for at := 0; at < c.Bytes; at += most {
		n := min(c.Bytes-at, most)
		share := (vectors(n) + helpers - 1) / helpers // the longest
		slot := enc.slotSize(share * vectorBytes)
		a := k.Args
		a.lane, a.group, a.slotBytes, a.root = e.laneOf(opBroadcast, e.ranks*slot), e.group, uint64(slot), int32(c.Root)
		a.in, a.out = operandAt(in+uint64(at), n, 0), operandAt(out+uint64(at), n, 0)
		e.spread(k, share)
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

// startHelpersReduce enqueues a reduce.
func (e *Engine) startHelpersReduce(stream *cuda.Stream, c *spec.Call) error {
	enc, helpers := encodingOf(c.DType), e.live()-1
	r := e.reduction(c)
	k, most := &e.reductions[c.DType].large.helpers, helpers*enc.capacity(e.turnBytes/2/e.ranks)
	for at := 0; at < c.Bytes; at += most {
		n := min(c.Bytes-at, most)
		share := (vectors(n) + helpers - 1) / helpers // the longest
		slot := enc.slotSize(share * vectorBytes)
		a := k.Args
		a.lane, a.group, a.slotBytes, a.root = e.laneOf(opReduce, 2*e.ranks*slot), e.group, uint64(slot), int32(c.Root)
		a.how = r.how()
		a.in, a.out = operandAt(r.In+uint64(at), n, 0), operandAt(r.Out+uint64(at), n, 0)
		e.spread(k, share)
		if err := e.lane.Start(stream, k.Launch.Launch); err != nil {
			return err
		}
	}
	return nil
}

package pull

import (
	"fmt"

	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/rankset"
)

// call is what must agree on all ranks, in a word that they compare: the operation, whether it brings
// weights, or gradients of weights home, and the routing by which it goes.
//
//	63      0: see engine/host
//	60..62  kind of the call
//	59      weights are wanted
//	0..58   number of the round that opened the routing's Prepare, without the highest bits of its
//	        generation
type call uint64

const (
	routingBits  = 59
	wantsWeights = call(1) << routingBits
	kindShift    = routingBits + 1
	callKinds    = 8
)

// The kinds of calls.
const (
	callPrepare = iota
	callDispatch
	callCombine
	callDispatchBackward
	callCombineBackward
	callDotsHome // the second half of combine backward
	callPrepareDispatch
)

var callNames = [callKinds]string{
	spec.OpPrepare, spec.OpDispatch, spec.OpCombine, spec.OpDispatchBackward, spec.OpCombineBackward,
	spec.OpCombineBackward, spec.OpPrepareDispatch, "an unknown operation",
}

func newCall(kind int, r *spec.Batch, weights bool) call {
	c := call(kind) << kindShift
	if weights {
		c |= wantsWeights
	}
	if r != nil {
		c |= call(r.Epoch) & (wantsWeights - 1)
	}
	return c
}

func (c call) kind() int { return int(c>>kindShift) % callKinds }

// differ says how ranks' calls differ.
func differ(calls rankset.Camps[uint64]) string {
	kinds := rankset.Regroup(calls, func(c uint64) int { return call(c).kind() })
	weights := rankset.Regroup(calls, func(c uint64) bool { return call(c)&wantsWeights != 0 })
	if kinds.Differ() {
		return kinds.Calling("calls", func(kind int) string { return callNames[kind] })
	}
	if !weights.Differ() {
		goes := "goes"
		if len(calls[0].Ranks) > 1 {
			goes = "go"
		}
		return fmt.Sprintf("%s %s by another routing than %s", rankset.Names(calls[0].Ranks), goes,
			rankset.Names(calls[len(calls)-1].Ranks))
	}
	with := weights[0]
	if !with.Value {
		with = weights[1]
	}
	if kinds[0].Value == callDispatch {
		return "weights come with the rows of some ranks only: " + rankset.Names(with.Ranks)
	}
	return "gradients of weights are asked for on some ranks only: " + rankset.Names(with.Ranks)
}

package pull

import "github.com/weftgo/weft/ep/spec"

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

// differs says how a peer's call differs from this rank's.
func differs(own, peer uint64) string {
	a, b := call(own), call(peer)
	switch {
	case a.kind() != b.kind():
		return "it calls " + callNames[b.kind()]
	case (a^b)&wantsWeights == 0:
		return "it goes by another routing"
	case a.kind() == callDispatch:
		return "weights come with the rows of some ranks only"
	default:
		return "gradients of weights are asked for on some ranks only"
	}
}

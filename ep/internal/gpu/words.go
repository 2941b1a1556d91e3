package gpu

import (
	"fmt"

	"github.com/weftgo/weft/device"
)

// laneWords name what records of a handle's kernels have numbers for.
var laneWords = &device.Words{Operation: operationName, Mismatch: mismatchText, Mirror: mirrored}

// mirrored gives the tags as the peer's record has them.
func mirrored(theirs, ours uint64) (uint64, uint64) { return ours, theirs }

// operationName names the operations that exchange.cuh numbers.
func operationName(op uint32) string {
	switch op {
	case 1:
		return "prepare"
	case 2:
		return "dispatch"
	case 3:
		return "combine"
	case 5:
		return "dispatch backward"
	case 6:
		return "combine backward"
	default:
		return ""
	}
}

// callBits is how many bits a call's tag has for the call: CALL_BITS of exchange.cuh. Above
// them it has the number of the Prepare that the call's routing is of.
const callBits = 4

// Calls that ranks have to make alike, as tags have them.
const (
	tagPrepare                = 1
	tagDispatch               = 2
	tagPrepareDispatch        = 3
	tagCombine                = 4
	tagDispatchBackward       = 5 // without gradients of weights, as all whose names do not say so
	tagDispatchWeightBackward = 6
	tagCombineBackward        = 7
	tagCombineWeightBackward  = 8
	tagWeightDispatch         = 9 // with weights for an existing Routing, in direct mode
)

// mismatchText says what a peer does that this rank does not, of the tags of their calls.
func mismatchText(theirs, ours uint64) string {
	if (theirs^ours)&(1<<callBits-1) == 0 {
		return "it goes by another routing"
	}
	return fmt.Sprintf("it calls %s, this rank %s", callName(theirs), callName(ours))
}

// callName is the name of a tag's call as errors have it.
func callName(tag uint64) string {
	switch tag & (1<<callBits - 1) {
	case tagPrepare:
		return "prepare"
	case tagDispatch:
		return "dispatch"
	case tagPrepareDispatch:
		return "a dispatch that prepares"
	case tagCombine:
		return "combine"
	case tagDispatchBackward:
		return "dispatch backward without gradients of weights"
	case tagDispatchWeightBackward:
		return "dispatch backward with gradients of weights"
	case tagCombineBackward:
		return "combine backward without gradients of weights"
	case tagCombineWeightBackward:
		return "combine backward with gradients of weights"
	case tagWeightDispatch:
		return "dispatch with weights"
	default:
		return "another operation"
	}
}

package gpu

import "github.com/weftgo/weft"

// Caps are the most bytes that one launch takes: functions of the memory of slots, of the ranks and of how
// elements travel, so the same on every rank. What is longer takes several launches.

// Turn is how many bytes of slots an operation has: operations take turns of three.
func Turn(staging int) int { return staging / turns &^ (lineBytes - 1) }

// slotCap is that of a part that each rank has a slot for: of the operand of a one-shot, of the parts of
// moves, and of the result of a reduce-scatter or a reduce.
func slotCap(t weft.DType, turn, ranks int) int { return encodingOf(t).capacity(turn / max(ranks, 1)) }

// twoShotCap is that of the operand of a two-shot, of which each live rank reduces a part. Half of a turn has
// inputs, half results.
func twoShotCap(t weft.DType, turn, ranks, live int) int {
	return live * encodingOf(t).capacity(turn/2/max(ranks, 1))
}

// Caps are the caps of an all-reduce in one shot, of one in two, and of a part that is moved or reduced, on
// ranks with so many bytes of staging memory.
func Caps(t weft.DType, staging, ranks int) (oneShot, twoShot, part int) {
	turn := Turn(staging)
	return slotCap(t, turn, ranks), twoShotCap(t, turn, ranks, ranks), slotCap(t, turn, ranks)
}

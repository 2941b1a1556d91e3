package gpu

import (
	"math"

	"github.com/weftgo/weft/collective/spec"
)

// Costs are those of a graph of operations that follow each other, in microseconds. An operation takes a trip,
// which its size does not change, for each launch; then its bytes at a rate.
//
//	           trip                      bytes on a rank's links, n ranks, S bytes an operand
//	one-shot   launch, load, hop         (n-1) S
//	two-shot   and one more hop          2 (n-1)/n S
//	flagged    launch, load, hop         those of the parts that it sends, or receives
//	direct     and a fence and a hop     the same, and nothing is staged

// ramp is what the first blocks of an operation take until stores keep the links busy: bytes at a rate, and
// no more than this.
const (
	ramp     = 0.4
	rampGBps = 640
)

// trip is what an operation of one launch takes at least.
func trip(q *spec.Request, m *spec.Model) float64 {
	return m.Launch + m.Load + m.Hop + m.Spread*math.Log2(float64(max(q.Ranks, 2))/2)
}

// launches is how many launches an operand takes of which each has as many bytes as a slot holds.
func launches(q *spec.Request) float64 {
	return count(q.Bytes, slotCap(q.DType, q.Slot, q.Ranks))
}

func count(bytes, most int) float64 {
	if most <= 0 {
		return 1
	}
	return max(1, math.Ceil(float64(bytes)/float64(most)))
}

// wire is how many bytes of slots so many bytes take.
func wire(q *spec.Request, bytes float64) float64 {
	return bytes * float64(encodingOf(q.DType).vectorSlot()) / vectorBytes
}

// pushed is how long slots of so many bytes take on their way to peers.
func pushed(q *spec.Request, m *spec.Model, bytes float64) float64 {
	bytes = wire(q, bytes)
	return min(ramp, spec.Micros(bytes, rampGBps)) + spec.Micros(bytes, m.Push)
}

func barrierCost(q spec.Request, m *spec.Model) float64 { return trip(&q, m) - m.Load }

func oneShotCost(q spec.Request, m *spec.Model) float64 {
	return launches(&q)*trip(&q, m) + pushed(&q, m, float64(q.Bytes)*float64(q.Ranks-1))
}

// A two-shot sends, sums and sends, which loses a little of the links' rate, and more where its slots do not
// stay in the GPU's cache.
const (
	twoShotStep   = 0.3
	twoShotShare  = 0.95
	twoShotBehind = 0.92
	cacheBytes    = 16 << 20
)

func twoShotCost(q spec.Request, m *spec.Model) float64 {
	n, share := float64(max(q.Ranks, 1)), twoShotShare
	slots := wire(&q, 2*float64(q.Bytes))
	if slots > cacheBytes {
		share = twoShotBehind
	}
	fixed := count(q.Bytes, twoShotCap(q.DType, q.Slot, q.Ranks, q.Ranks)) * (trip(&q, m) + m.Hop + twoShotStep)
	return fixed + pushed(&q, m, 2*(n-1)/n*float64(q.Bytes))/share
}

// Pieces that are pushed fill no link until the first have come through. They lose a little of the links' rate, and
// more where results are taken from staging memory. Then a GPU's own part takes longer than the links of two ranks.
const (
	pushFill    = 8
	pushCollect = 3
	pushDirect  = 0.98
	pushStaged  = 0.95
	pushOwnGBps = 268
	pushBlocks  = 128 // that staging memory is for
)

func pushCost(q spec.Request, m *spec.Model) float64 {
	n, fill, share, own := float64(max(q.Ranks, 1)), float64(pushFill), pushDirect, 0.0
	if q.Windows&spec.Outputs == 0 {
		fill, share, own = fill+pushCollect, pushStaged, spec.Micros(float64(q.Bytes), pushOwnGBps)
	}
	if q.Slot > 0 { // pieces that are shorter than usual take as long as those
		room := float64(turns*q.Slot) / pushShare
		if q.Windows&spec.Outputs == 0 {
			room /= 2
		}
		share *= min(1, room/(pushDepth*max(1, n-1)*pushBlocks*usualPiece))
	}
	return meeting(&q, m) + fill + max(own, spec.Micros(2*(n-1)/n*float64(q.Bytes), m.Push*share))
}

// stagedPasses is how often the GPU's own memory sees what came through slots: read, written to the output,
// and cleared.
const stagedPasses = 3

func flaggedCost(q spec.Request, m *spec.Model) float64 {
	moved := float64(q.Bytes) * float64(q.Ranks-1)
	arrives := moved
	switch q.Collective {
	case spec.Broadcast, spec.Scatter:
		arrives = float64(q.Bytes)
	default:
	}
	return launches(&q)*trip(&q, m) + pushed(&q, m, moved) +
		spec.Micros(stagedPasses*wire(&q, arrives), m.Copy)
}

// meeting is how blocks of direct operations begin and end: they meet, and fence what they have done.
func meeting(q *spec.Request, m *spec.Model) float64 { return trip(q, m) + m.Hop + m.Fence }

func directMoveCost(q spec.Request, m *spec.Model) float64 {
	return meeting(&q, m) + spec.Micros(float64(q.Bytes)*float64(q.Ranks-1), m.Push)
}

func directReduceCost(q spec.Request, m *spec.Model) float64 {
	n := float64(max(q.Ranks, 1))
	moved := (n - 1) * float64(q.Bytes)
	if q.Collective == spec.AllReduce {
		moved *= 2 / n
	}
	return meeting(&q, m) + spec.Micros(moved, m.Pull)
}

package ep

import (
	"fmt"

	"github.com/weftgo/weft"
)

// tuning says how a handle on GPUs moves rows. It follows from the Spec and the number of ranks alone, so it is the same on every rank.
type tuning struct {
	// Rows are values that are their own flags, or are told of by a word a block.
	valueDispatch, valueCombine bool
	// The kernel before in the stream may still be ending when this one's blocks are placed.
	dependent bool
	// Units of 512 bytes that a warp of dispatch moves at a time: several save instructions, one spreads little over more SMs.
	dispatchUnits int
	// Threads of a block, and blocks that would have something to do.
	dispatchThreads, dispatchBlocks int
	combineThreads, combineBlocks   int
}

// Up to so many tokens a rank rows are their own flags: beyond, polling and refilling cost more than the fence and the second trip. Where rows are spread over
// experts on arrival there is a copy in either form, and the first lasts longer. Measured on two H200s, rows of 14 KiB: docs/performance.md.
const (
	valueTokens         = 128
	valueTokensByExpert = 256
	valueCombineTokens  = 256
	// Up to so many tokens dependent launches gain more than they take.
	dependentTokens = 64
	// How many warps must be left to move rows in several units at a time.
	unitWarps = 512
)

// unitBytes is what a lane's 16 bytes make a warp's: UNIT of kernels/exchange.cuh.
const unitBytes = 512

func tune(s Spec, ranks int) tuning {
	limit := valueTokens
	if s.Layout.byExpert() {
		limit = valueTokensByExpert
	}
	// In rows of any bits, words of ones cannot be told from missing ones.
	anyBits := s.Payload == Opaque || s.Payload == FP8UE8M0
	t := tuning{
		valueDispatch: s.MaxTokens <= limit && !anyBits,
		valueCombine:  s.MaxTokens <= valueCombineTokens,
		dependent:     s.MaxTokens <= dependentTokens,
		dispatchUnits: 1, dispatchThreads: 256, combineThreads: 128,
	}
	units := s.MaxTokens * ceil(s.rowBytes(), unitBytes)
	for most := mostUnits(s); t.dispatchUnits < most && units/(2*t.dispatchUnits) >= unitWarps; {
		t.dispatchUnits *= 2
	}
	warps := s.MaxTokens * ceil(s.rowBytes(), t.dispatchUnits*unitBytes)
	if t.valueDispatch {
		warps *= ranks
	} else {
		t.dispatchThreads = 512
	}
	t.dispatchBlocks = ceil(warps, t.dispatchThreads/32)
	if !s.combines() {
		return t
	}
	switch {
	case !t.valueCombine:
		t.combineThreads = 512
	case s.MaxTokens > 128:
		t.combineThreads = 256
	}
	t.combineBlocks = ceil(s.MaxTokens*ceil(s.outputBytes(), unitBytes), t.combineThreads/32)
	return t
}

// mostUnits is how many units the kernels of a dispatch are made for at the most.
func mostUnits(s Spec) int {
	switch s.Quantize {
	case weft.InvalidDType:
		return 4
	case weft.Float32:
		return 1
	default:
		return 2
	}
}

// dispatchName is the kernel of dispatch.
func (t *tuning) dispatchName() string {
	if t.valueDispatch {
		return fmt.Sprintf("weft_dispatch_value_%d", t.dispatchUnits)
	}
	return fmt.Sprintf("weft_dispatch_flag_%d", t.dispatchUnits)
}

// combineName is the kernel of combine.
func (t *tuning) combineName(s Spec, ranks int) string {
	switch {
	case !t.valueCombine:
		return "weft_combine_flag"
	case combineForm(s) == exactForm || ranks > 4:
		return "weft_combine_value_8"
	case ranks > 2:
		return "weft_combine_value_4"
	default:
		return "weft_combine_value_2"
	}
}

func ceil(n, by int) int { return (n + by - 1) / by }

package ep

// tuning says how a handle on GPUs moves rows. It follows from the Spec and from what all ranks have agreed on, so that it is the same on every rank.
type tuning struct {
	// Rows are values that are their own flags, or are told of by a word a block.
	valueDispatch, valueCombine bool
	// The kernel before in the stream may still be ending when this one's blocks are placed.
	dependent bool
	// Threads of a block, and blocks that would have something to do.
	dispatchThreads, dispatchBlocks int
	combineThreads, combineBlocks   int
}

// Up to so many tokens a rank rows are their own flags. Beyond, the polls and the refilling cost more than the fence and the second trip: measured on
// four H200s, rows of 14 KiB, 19.5 us against 18.4 for a dispatch of 128 tokens, 17.8 against 21.1 for a combine.
const (
	valueDispatchTokens = 48
	valueCombineTokens  = 256
	// Up to so many tokens dependent launches gain more than they take.
	dependentTokens = 64
)

func tune(s Spec, ranks int) tuning {
	// Words of ones cannot be told from missing ones in rows of any bits.
	anyBits := s.Payload == Opaque || s.Payload == FP8UE8M0
	t := tuning{
		valueDispatch: s.MaxTokens <= valueDispatchTokens && !anyBits,
		valueCombine:  s.MaxTokens <= valueCombineTokens,
		dependent:     s.MaxTokens <= dependentTokens,
	}
	pieces := func(rowBytes int) int { return (rowBytes + pieceBytes - 1) / pieceBytes }
	t.dispatchThreads, t.combineThreads = 128, 128
	warps := s.MaxTokens * pieces(s.rowBytes())
	if t.valueDispatch {
		warps *= ranks
	} else {
		t.dispatchThreads = 512
	}
	t.dispatchBlocks = ceil(warps, t.dispatchThreads/32)
	if !s.combines() {
		return t
	}
	warps = s.MaxTokens * pieces(s.outputBytes())
	if !t.valueCombine {
		t.combineThreads = 512
	}
	t.combineBlocks = ceil(warps, t.combineThreads/32)
	return t
}

// pieceBytes is what a warp moves at a time: PIECE of kernels/exchange.cuh.
const pieceBytes = 512

func ceil(n, by int) int { return (n + by - 1) / by }

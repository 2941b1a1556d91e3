package host

// sizes are in bytes.
type sizes struct {
	CopyStep         int // of a pipeline that sends all ranks the same
	ScatterStep      int // of one that sends each its own
	TwoShotStep      int
	HierarchicalStep int // of the operand, between hosts
	WindowChunk      int // of a rank in a step of the window reduction
	EagerCounts      int // the data that goes with the counts of an all-to-all-v
}

// tuning is the same on all ranks by being compiled into them. Which form runs is for package choice.
var tuning = sizes{
	CopyStep:         64 << 10,
	ScatterStep:      128 << 10,
	TwoShotStep:      512 << 10,
	HierarchicalStep: 512 << 10,
	WindowChunk:      64 << 10,
	EagerCounts:      16 << 10,
}

package spec

// The operations' names in errors.
const (
	OpPrepare          = "prepare"
	OpPrepareDispatch  = "prepare dispatch"
	OpDispatch         = "dispatch"
	OpCombine          = "combine"
	OpDispatchBackward = "dispatch backward"
	OpCombineBackward  = "combine backward"
	OpSetWeights       = "set weights"
)

package spec

// What errors call the operations.
const (
	OpPrepare          = "prepare"
	OpPrepareDispatch  = "prepare dispatch"
	OpDispatch         = "dispatch"
	OpCombine          = "combine"
	OpDispatchBackward = "dispatch backward"
	OpCombineBackward  = "combine backward"
	OpWeigh            = "weigh"
)

package ep

// What errors call the operations.
const (
	opPrepare          = "prepare"
	opPrepareDispatch  = "prepare dispatch"
	opDispatch         = "dispatch"
	opCombine          = "combine"
	opDispatchBackward = "dispatch backward"
	opCombineBackward  = "combine backward"
	opWeigh            = "weigh"
)

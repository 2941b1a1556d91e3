package device

// RecordBytes is the size of a [Record].
const RecordBytes = 64

// Record is what a wait on the device leaves in host memory when it gives up. It is the Record of
// weft.cuh, field by field.
type Record struct {
	State    uint32 // RecordEmpty, or RecordWritten when all the rest is there
	Op       uint32 // one of the Op constants
	Epoch    uint64
	Rank     int32 // who waited
	Peer     int32 // for whom
	Cause    uint32
	_        uint32
	Expected uint64
	Seen     uint64
	_        [16]byte
}

// States of a Record.
const (
	RecordEmpty   = 0
	RecordWritten = 1
)

// Causes of a Record.
const (
	CauseTimeout = 1 // the deadline passed
	CauseAbort   = 2 // the rank's abort word was set
	CauseStopped = 3 // an operation was started, or replayed, after one before had given up
	// CauseMismatch: the peer made another call, or goes by another routing. Expected is this
	// rank's call with CallBits bits, and above them which Prepare its routing is of; Seen is the
	// peer's.
	CauseMismatch = 4
)

// CallBits is how many bits words have for a call.
const CallBits = 4

// Calls that ranks have to make alike.
const (
	CallPrepare                = 1
	CallDispatch               = 2
	CallPrepareDispatch        = 3
	CallCombine                = 4
	CallDispatchBackward       = 5 // without gradients of weights, as all whose names do not say so
	CallDispatchWeightBackward = 6
	CallCombineBackward        = 7
	CallCombineWeightBackward  = 8
	CallWeightDispatch         = 9 // with weights for a Routing that is there, of rows that have places
)

// CallName is the name of a call as errors have it.
func CallName(call uint64) string {
	switch call & (1<<CallBits - 1) {
	case CallPrepare:
		return "Prepare"
	case CallDispatch:
		return "Dispatch"
	case CallPrepareDispatch:
		return "PrepareDispatch"
	case CallCombine:
		return "Combine"
	case CallDispatchBackward:
		return "DispatchBackward without gradients of weights"
	case CallDispatchWeightBackward:
		return "DispatchBackward with gradients of weights"
	case CallCombineBackward:
		return "CombineBackward without gradients of weights"
	case CallCombineWeightBackward:
		return "CombineBackward with gradients of weights"
	case CallWeightDispatch:
		return "Dispatch with weights"
	default:
		return "another operation"
	}
}

// Operations that wait on the device.
const (
	OpPrepare          = 1
	OpDispatch         = 2
	OpCombine          = 3
	OpBarrier          = 4
	OpDispatchBackward = 5
	OpCombineBackward  = 6
)

// OpName is the name of an operation as errors have it.
func OpName(op uint32) string {
	switch op {
	case OpPrepare:
		return "prepare"
	case OpDispatch:
		return "dispatch"
	case OpCombine:
		return "combine"
	case OpBarrier:
		return "barrier"
	case OpDispatchBackward:
		return "dispatch backward"
	case OpCombineBackward:
		return "combine backward"
	default:
		return "device operation"
	}
}

package device

import "fmt"

// RecordBytes is the size of a [Record].
const RecordBytes = 64

// Record is what a wait on the device leaves in host memory when it gives up. It is the Record of
// comm.cuh, field by field.
type Record struct {
	State    uint32 // RecordEmpty, or RecordWritten when all the rest is there
	Op       uint32 // the number of the operation: see Words
	Epoch    uint64
	Rank     int32 // who waited
	Peer     int32 // for whom
	Cause    uint32
	Lane     uint32 // Group.Lane
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
	// CauseMismatch: the peer made another call. Expected is the tag of this rank's call, and Seen
	// that of the peer's.
	CauseMismatch = 4
)

// Words are how errors name what the records of a lane have numbers for. Whoever owns a lane's
// operations knows the words; a record names the lane.
type Words struct {
	// Operation names an operation by its number: "dispatch". Without it, or with "", an operation
	// is a "device operation".
	Operation func(op uint32) string
	// Mismatch says what a peer does that this rank does not, of the tags of their calls: "it calls
	// Combine, this rank Dispatch". Without it they are numbers.
	Mismatch func(theirs, ours uint64) string
}

// OperationName is the name of the operation that left the record.
func (r *Record) OperationName(w *Words) string {
	if w != nil && w.Operation != nil {
		if name := w.Operation(r.Op); name != "" {
			return name
		}
	}
	return "device operation"
}

// MismatchText says what the record's peer does that its rank does not.
func (r *Record) MismatchText(w *Words) string {
	if w != nil && w.Mismatch != nil {
		return w.Mismatch(r.Seen, r.Expected)
	}
	return fmt.Sprintf("its call has the tag %#x, this rank's %#x", r.Seen, r.Expected)
}

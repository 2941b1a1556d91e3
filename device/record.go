package device

import "fmt"

// RecordBytes is the size of a [Record].
const RecordBytes = 64

// Record is the wait record of a device wait that timed out, in host memory. It is the Record of
// comm.cuh, field by field.
type Record struct {
	State    uint32 // RecordEmpty, or RecordWritten when the other members are written
	Op       uint32 // the number of the operation: see Words
	Epoch    uint64
	Rank     int32 // the waiting rank
	Peer     int32 // the awaited rank
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
	CauseStopped = 3 // an operation was started, or replayed, after a wait of an earlier one had timed out
	// CauseMismatch: the peer made another call. Expected is the tag of this rank's call, and Seen
	// that of the peer's.
	CauseMismatch = 4
	CauseLost     = 5 // the port channel to the peer has failed; its host knows why
	CauseInvalid  = 6 // what was asked of the port channel or queue pair to the peer does not fit its memories
	CauseNIC      = 7 // the network card reports that an entry to the peer has failed: see NicFailed
)

// Words are the names, in errors, of the numbers in a lane's records. The owner of a lane's
// operations has the words; a record names the lane.
type Words struct {
	// Operation names an operation by its number: "dispatch". Without it, or with "", an operation
	// is a "device operation".
	Operation func(op uint32) string
	// Message reports whether an operation waits for messages, which peers may do for each other's. Without it none does.
	Message func(op uint32) bool
	// Mismatch describes the difference between a peer's call and this rank's, from their tags: "it
	// calls Combine, this rank Dispatch". Without it they are numbers.
	Mismatch func(theirs, ours uint64) string
	// Mirror gives the tags that the peer's own record of the same difference has. The peer, which may
	// have left for the abort word, then gets the error that its record would have made. Without it
	// the peer's error only says that the operation ended.
	Mirror func(theirs, ours uint64) (uint64, uint64)
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

// IsMessage reports whether the wait that left the record was for a message.
func (r *Record) IsMessage(w *Words) bool {
	return w != nil && w.Message != nil && w.Message(r.Op)
}

// PeerText is the MismatchText of the peer's side; "" if the lane has no words for it.
func (r *Record) PeerText(w *Words) string {
	if w == nil || w.Mismatch == nil || w.Mirror == nil {
		return ""
	}
	return w.Mismatch(w.Mirror(r.Seen, r.Expected))
}

// MismatchText describes the difference between the calls of the record's peer and its rank.
func (r *Record) MismatchText(w *Words) string {
	if w != nil && w.Mismatch != nil {
		return w.Mismatch(r.Seen, r.Expected)
	}
	return fmt.Sprintf("its call has the tag %#x, this rank's %#x", r.Seen, r.Expected)
}

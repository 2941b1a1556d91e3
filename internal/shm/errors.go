package shm

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors that callers branch on, with errors.Is.
var (
	// ErrNeedsLinux: this operating system has no sealed memory files to share.
	ErrNeedsLinux = errors.New("shared memory between ranks needs Linux")

	// ErrNotMemfd: a descriptor names something other than a memory file.
	ErrNotMemfd = errors.New("not a memfd")
	// ErrNotSealed: a memory file can still shrink under its readers, which would die of SIGBUS.
	ErrNotSealed = errors.New("not sealed against shrinking")
	// ErrTooSmall: a memory file is smaller than it was said to be.
	ErrTooSmall = errors.New("smaller than the region")
	// ErrNoHugePages: the system has no huge pages to give.
	ErrNoHugePages = errors.New("no huge pages")
	// ErrReleased: a region was released more often than it was retained.
	ErrReleased = errors.New("region already released")

	// ErrMalformed: bytes that are not an address or a frame of this version.
	ErrMalformed = errors.New("malformed")
	// ErrOtherHost: a peer can't share memory with this process.
	ErrOtherHost = errors.New("not on this host")
	// ErrOtherUser: a peer runs as another user, and neither of the two is root.
	ErrOtherUser = errors.New("of another user")
	// ErrOtherProcess: plain memory can't be handed to a peer of another process.
	ErrOtherProcess = errors.New("in another process")
	// ErrMismatch: the ranks made different calls, were given different lists of members, or run
	// different versions of Weft.
	ErrMismatch = errors.New("ranks disagree")
	// ErrNoDescriptor: a peer's descriptor arrived but this process had no room for it.
	ErrNoDescriptor = fmt.Errorf("descriptor lost: %w", syscall.EMFILE)
	// ErrTooLarge: a message exceeds [MaxMessage].
	ErrTooLarge = errors.New("message too large")
	// ErrBusy: a peer has not read the last packet.
	ErrBusy = errors.New("not reading its messages")
	// ErrClosed: the listener or mesh was closed by this rank, or was used before.
	ErrClosed = errors.New("closed")
	// ErrLeft: a peer closed its mesh.
	ErrLeft = errors.New("left")
	// ErrDied: a peer's process ended, or its connection broke.
	ErrDied = errors.New("died")
)

// versionError says that a peer speaks another version.
type versionError struct{ theirs byte }

func (e *versionError) Error() string {
	return fmt.Sprintf("it speaks version %d of the shared-memory protocol, this rank version %d: install "+
		"the same Weft for every rank",
		e.theirs, frameVersion)
}

func (e *versionError) Unwrap() []error { return []error{ErrMismatch, ErrMalformed} }

// PeerError says which peer an operation failed for. Err wraps one of the errors above or the
// context's.
type PeerError struct {
	Peer int // position in the list that the mesh was made of
	Err  error
}

func (e *PeerError) Error() string { return fmt.Sprintf("peer %d: %v", e.Peer, e.Err) }
func (e *PeerError) Unwrap() error { return e.Err }

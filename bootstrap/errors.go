package bootstrap

import (
	"context"
	"errors"
	"fmt"
)

// The reasons a bootstrap fails. They arrive wrapped, mostly in a [*PeerError]; match them with
// [errors.Is].
var (
	// ErrClosed: this rank closed the bootstrap.
	ErrClosed = errors.New("bootstrap closed")

	// ErrLeft: the rank closed its bootstrap.
	ErrLeft = errors.New("rank left")

	// ErrDied: the rank's connection ended without a farewell, or a new connection finds no
	// listener: its process ended, or the network to it did.
	ErrDied = errors.New("rank died")

	// ErrTimeout: the rank did not answer before the deadline of some rank's context.
	ErrTimeout = errors.New("no answer before the deadline")

	// ErrAborted: the rank gave a collective up because its context was cancelled or expired, or it
	// could open no more files.
	ErrAborted = errors.New("aborted")

	// ErrMismatch: ranks made different collective calls where the same was due, or run different
	// versions of Weft.
	ErrMismatch = errors.New("ranks disagree")

	// ErrSecret: the other side did not prove that it holds the job's secret.
	ErrSecret = errors.New("wrong secret")

	// ErrProtocol: the other side sent something that is not this protocol: a bad magic, a frame
	// that is malformed or too long.
	ErrProtocol = errors.New("protocol violation")

	// ErrDuplicateRank: two processes say that they are the same rank.
	ErrDuplicateRank = errors.New("duplicate rank")

	// ErrSizeMismatch: a rank was started with another number of ranks.
	ErrSizeMismatch = errors.New("ranks disagree on the number of ranks")

	// ErrNotLoopback: without a secret, a peer on another machine is refused.
	ErrNotLoopback = errors.New("without a secret only loopback peers are accepted")

	// ErrTooLong: a message is longer than [MaxMessage].
	ErrTooLong = errors.New("message too long")

	// ErrEnvironment: the launcher's variables are incomplete or contradict each other.
	ErrEnvironment = errors.New("launch environment")
)

// PeerError names the rank and the operation of a failure.
type PeerError struct {
	Rank int    // the rank to blame, a third one or this; -1: none, as ranks wait for each other, or most do not agree
	Op   string // the operation of this rank: "join", "send", "recv", "all-gather" or "barrier"
	Err  error  // wraps one of the sentinels of this package, a context's error, or both
}

func (e *PeerError) Error() string {
	if e.Rank < 0 {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: rank %d: %v", e.Op, e.Rank, e.Err)
}

// Unwrap returns Err.
func (e *PeerError) Unwrap() error { return e.Err }

// LimitError is an error of a call that its context's deadline ended. Its words say how long the call waited, and that
// the context set that limit: whoever set it has nothing to add.
type LimitError struct{ Err error }

func (e *LimitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *LimitError) Unwrap() error { return e.Err }

// late is the error of a call that its context ended; a deadline reads as [ErrTimeout] too.
func late(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return expired{err}
	}
	return err
}

// expired is an ErrTimeout that is a context's error, too.
type expired struct{ cause error }

func (e expired) Error() string   { return ErrTimeout.Error() }
func (e expired) Unwrap() []error { return []error{ErrTimeout, e.cause} }

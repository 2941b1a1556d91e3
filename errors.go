package weft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/filelimit"
)

// PeerError names the rank and the operation of a failure. Its Err wraps one of the sentinels
// below.
type PeerError = channel.PeerError

// Errors that callers branch on, with errors.Is.
var (
	// ErrTimeout: a rank did not answer before the deadline.
	ErrTimeout = channel.ErrTimeout
	// ErrAborted: a rank aborted the operation.
	ErrAborted = channel.ErrAborted
	// ErrDied: a rank's process ended.
	ErrDied = channel.ErrDied
	// ErrLeft: a rank closed its communicator.
	ErrLeft = channel.ErrLeft
	// ErrUnsupported: the request is not supported here; nothing was enqueued. The error's text
	// names the way out.
	ErrUnsupported = errors.New("unsupported")
	// ErrInvalid: the arguments contradict each other or the contract; nothing was enqueued.
	ErrInvalid = errors.New("invalid argument")
	// ErrMismatch: ranks made different calls, or arguments that must be equal on all ranks differ.
	ErrMismatch = bootstrap.ErrMismatch
	// ErrClosed: the communicator, window or handle was closed by this rank.
	ErrClosed = errors.New("closed")
	// ErrBusy: a call is in progress on what was to be closed.
	ErrBusy = errors.New("busy")
	// ErrMasked: this rank or the rank asked for is masked.
	ErrMasked = channel.ErrMasked
)

// opError is an error of an operation that no single peer is to blame for.
type opError struct {
	op  string
	err error
}

func (e *opError) Error() string { return e.op + ": " + e.err.Error() }
func (e *opError) Unwrap() error { return e.err }

// names reports whether an error names the operation itself.
func names(err error, op string) bool {
	switch e := err.(type) {
	case *PeerError:
		return e.Op == op
	case *opError:
		return e.op == op
	}
	return false
}

// ownLimit blames this rank for a failure at its own limit of open files, although the error names a
// peer.
func ownLimit(op string, rank int, err error) error {
	if !filelimit.Reached(err) {
		return err
	}
	return &PeerError{Rank: rank, Op: op, Err: fmt.Errorf("%w: %w", ErrAborted, filelimit.Error())}
}

// retold says in other words what its causes say.
type retold struct {
	text   string
	causes []error
}

func (e retold) Error() string   { return e.text }
func (e retold) Unwrap() []error { return e.causes }

// trimCause is an error's text without the words of the sentinel that it begins with.
func trimCause(err, sentinel error) string {
	return strings.TrimPrefix(err.Error(), sentinel.Error()+": ")
}

// Unsupportedf makes an error that wraps [ErrUnsupported]. The text says what is not supported and
// names the way out.
func Unsupportedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Invalidf makes an error that wraps [ErrInvalid].
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

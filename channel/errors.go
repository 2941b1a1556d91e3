package channel

import (
	"errors"
	"fmt"

	"github.com/weftgo/weft/bootstrap"
)

// errFiles is the error of the other ranks in that case.
var errFiles = fmt.Errorf("%w: it has reached its limit of open files: raise it there (ulimit -n)", ErrAborted)

// PeerError names the rank and the operation of a failure.
type PeerError = bootstrap.PeerError

// The reasons that a [*PeerError] wraps.
var (
	// ErrTimeout: the deadline passed.
	ErrTimeout = bootstrap.ErrTimeout
	// ErrAborted: the rank gave the operation up; its caller cancelled it or called Abort.
	ErrAborted = bootstrap.ErrAborted
	// ErrDied: the rank's process ended.
	ErrDied = bootstrap.ErrDied
	// ErrLeft: the rank closed its communicator.
	ErrLeft = bootstrap.ErrLeft
	// ErrMasked: the rank is masked and takes part in no operation.
	ErrMasked = errors.New("masked")
)

package bootstrap

import "fmt"

// reason is a sentinel error on the wire.
type reason uint8

const (
	accepted reason = iota
	reasonDied
	reasonLeft
	reasonTimeout
	reasonAborted
	reasonMismatch
	reasonSecret
	reasonProtocol
	reasonDuplicate
	reasonSize
	reasonNotLoopback
	reasonOtherJob // the dialler belongs to another job, or this address does
	reasonFull     // the job is complete; a later one may form at the same address
	reasonCount
)

var sentinels = [reasonCount]error{
	reasonDied:        ErrDied,
	reasonLeft:        ErrLeft,
	reasonTimeout:     ErrTimeout,
	reasonAborted:     ErrAborted,
	reasonMismatch:    ErrMismatch,
	reasonSecret:      ErrSecret,
	reasonProtocol:    ErrProtocol,
	reasonDuplicate:   ErrDuplicateRank,
	reasonSize:        ErrSizeMismatch,
	reasonNotLoopback: ErrNotLoopback,
	reasonOtherJob:    errOtherJob,
	reasonFull:        errFull,
}

// errOtherJob and errFull are answers that ask to try again, elsewhere or later; the error that is
// finally reported wraps them in a sentinel.
var (
	errOtherJob = fmt.Errorf("%w: another job answers at this address", ErrProtocol)
	errFull     = fmt.Errorf("%w: the job at this address already has it", ErrDuplicateRank)
)

// err is the sentinel with an explanation.
func (r reason) err(text string) error {
	if text == "" {
		return sentinels[r]
	}
	return fmt.Errorf("%w: %s", sentinels[r], text)
}

// deadly reports whether nothing more will come from the rank.
func (r reason) deadly() bool { return r == reasonDied || r == reasonLeft || r == reasonProtocol }

// death reports whether the rank is to blame for later failures of its peers.
func (r reason) death() bool { return r == reasonDied || r == reasonProtocol }

// ofJob reports whether the job cannot continue at all, whatever its ranks did before.
func (r reason) ofJob() bool { return r == reasonDuplicate || r == reasonSize || r == reasonMismatch }

package fabric

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/fabric/internal/provider"
)

// PeerError names the rank and the operation of a failure: "connect", "region", "write", "signal", "add",
// "flush" or "await". Its Err wraps one of the sentinels below.
type PeerError = bootstrap.PeerError

// ProviderError is a call of libfabric that failed, or a write that it reports as failed. It has
// libfabric's name for the call, its code, and its and the provider's text.
type ProviderError = provider.Failure

// Errors that callers branch on, with [errors.Is].
var (
	// ErrUnsupported: this machine, library or provider cannot do it. The text names the way out.
	ErrUnsupported = errors.New("unsupported")
	// ErrInvalid: the arguments contradict the contract; nothing was posted.
	ErrInvalid = errors.New("invalid argument")
	// ErrMismatch: ranks opened domains that do not fit together.
	ErrMismatch = bootstrap.ErrMismatch
	// ErrTimeout: the deadline passed.
	ErrTimeout = bootstrap.ErrTimeout
	// ErrLost: a write to the peer failed. What was written before may have arrived or not, so
	// nothing else is written to the peer.
	ErrLost = errors.New("connection lost")
	// ErrRevoked: the peer has closed the region that an Add is for.
	ErrRevoked = errors.New("region revoked")
	// ErrClosed: this rank closed the domain, the region or the peer.
	ErrClosed = errors.New("closed")
)

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnsupported, fmt.Errorf(format, args...))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// expired is an ErrTimeout that is a context's error, too.
type expired struct{ cause error }

func (e expired) Error() string   { return ErrTimeout.Error() }
func (e expired) Unwrap() []error { return []error{ErrTimeout, e.cause} }

// late is the error of a call that its context ended; a deadline reads as [ErrTimeout] too.
func late(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return expired{err}
	}
	return err
}

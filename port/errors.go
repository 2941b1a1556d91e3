package port

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/fabric"
)

// PeerError names the rank and the operation of a failure: "put", "signal", "add", "flush", "wait", or
// "channel" if nothing was underway. Its Err wraps one of package fabric's errors.
type PeerError = fabric.PeerError

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", fabric.ErrInvalid, fmt.Sprintf(format, args...))
}

func errSpreadAdd(rank int) error {
	return &PeerError{Rank: rank, Op: "add", Err: fmt.Errorf("%w: the channel spreads over rails, on which an add "+
		"would overtake data: make another channel for adds, with Spread false", fabric.ErrUnsupported)}
}

// ended is why a context ended. A deadline is fabric.ErrTimeout, too.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", fabric.ErrTimeout, cause)
	}
	return cause
}

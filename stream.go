package weft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cuda"
)

// Stream is an ordered queue of work on a device. On the host there is none: a nil Stream means
// that the call returns when its work is done.
type Stream struct{ stream *cuda.Stream }

// StreamOf makes a Stream of a CUDA stream, which it borrows. Operations that get the Stream enqueue
// there. It returns nil for nil.
func StreamOf(s *cuda.Stream) *Stream {
	if s == nil {
		return nil
	}
	return &Stream{stream: s}
}

// CUDA is the stream that StreamOf was given, or nil.
func (s *Stream) CUDA() *cuda.Stream {
	if s == nil {
		return nil
	}
	return s.stream
}

// errSlice is the cause that ends one slice of a longer wait.
var errSlice = errors.New("slice of a wait")

// Wait waits until the work that was enqueued on the stream has ended; nil is the Comm's own stream.
// It returns the failure that an operation has met meanwhile, which synchronising the stream would
// not show. It ends when ctx does, or a little after the deadline, by which waits on the device have
// ended. The work may then still run, and Wait may be called again. A stream that captures is
// refused, because its work has not run. On the host Wait only returns the failure.
func (c *Comm) Wait(ctx context.Context, s *Stream) error {
	const op = "wait"
	if err := c.gate.Enter(op); err != nil {
		return err
	}
	defer c.gate.Leave()
	if c.device == nil {
		return c.begin(op)
	}
	stream := s.CUDA()
	if stream == nil {
		stream = c.device.stream
	}
	// To ask such a stream whether it is done would break the capture.
	if status, err := stream.CaptureStatus(); err != nil || status != cuda.NotCapturing {
		return cmp.Or(deviceError(op, err), Unsupportedf("%s: the stream captures, so its work has not run; "+
			"wait for the graph's launch", op))
	}
	return c.await(ctx, op, stream.Wait)
}

// await waits for work of this rank's GPU, of which wait says when it has ended: see [Operations.Await].
func (c *Comm) await(ctx context.Context, op string, wait func(context.Context) error) error {
	if err := c.gate.Enter(op); err != nil {
		return err
	}
	defer c.gate.Leave()
	begun, report := time.Now(), bootstrap.ReportAfter
	timeout := c.control.Waiter.Timeout + c.control.Waiter.Timeout/4
	outer := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrTimeout)
	defer cancel()
	// Between the slices it looks for a record of a device wait that has timed out: the work behind
	// that wait must end, too.
	for {
		slice, done := context.WithTimeoutCause(ctx, 5*time.Millisecond, errSlice)
		err := wait(slice)
		done()
		fault := c.begin(op)
		switch {
		case errors.Is(err, errSlice):
			// It may say so to this goroutine alone, as the contexts of package clib do.
			if err := outer.Err(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: the work has not ended: %w", op, err)
			}
			if waited := time.Since(begun); waited > report {
				report *= 2
				c.logger.Warn("waiting for work on the GPU for "+bootstrap.Seconds(waited), "op", op)
			}
			continue
		case fault != nil:
			return fault
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("%s: the work has not ended in %s: %w", op, bootstrap.Seconds(time.Since(begun)), err)
		case err != nil:
			return deviceError(op, err)
		}
		return nil
	}
}

package cuda

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// Event marks a point in a stream. It is safe for concurrent use.
type Event struct {
	context *Context
	handle  sys.Event
	closed  atomic.Bool
}

// EventOptions say how an event is made.
type EventOptions struct {
	// Timing makes the event take the time, which costs the device a little.
	Timing bool
	// BlockingSync makes Synchronize sleep instead of spin.
	BlockingSync bool
}

// NewEvent makes an event, which the caller closes.
func (c *Context) NewEvent(o EventOptions) (*Event, error) {
	const call = "cuEventCreate"
	if err := c.use(call); err != nil {
		return nil, err
	}
	flags := uint32(0)
	if !o.Timing {
		flags |= sys.EventDisableTiming
	}
	if o.BlockingSync {
		flags |= sys.EventBlockingSync
	}
	handle := new(sys.Event)
	if err := c.check(call, c.table.EventCreate(c.handle, handle, flags)); err != nil {
		return nil, err
	}
	return &Event{context: c, handle: *handle}, nil
}

// Close destroys the event; streams that wait for it still do. Further calls do nothing.
func (e *Event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.context.check("cuEventDestroy", e.context.table.EventDestroy(e.context.handle, e.handle))
}

// use refuses an event that is not there, or no longer.
func (e *Event) use(call string) error {
	switch {
	case e == nil:
		return missing(call, "event")
	case e.closed.Load():
		return closed(call)
	}
	return nil
}

// Handle is the driver's CUevent.
func (e *Event) Handle() uintptr { return uintptr(e.handle) }

// Record marks the stream's end as it is now. The stream must be of the event's context.
func (e *Event) Record(s *Stream) error {
	const call = "cuEventRecord"
	if err := cmp.Or(e.use(call), s.use(call)); err != nil {
		return err
	}
	return e.context.check(call, e.context.table.EventRecord(e.context.handle, e.handle, s.handle))
}

// Query says whether the point has been reached. An event that was never recorded has.
func (e *Event) Query() (done bool, err error) {
	const call = "cuEventQuery"
	if err := e.use(call); err != nil {
		return false, err
	}
	r := e.context.asking(func() sys.Result { return e.context.table.EventQuery(e.context.handle, e.handle) })
	if Code(r) == ErrNotReady {
		return false, nil
	}
	return r == sys.Success, e.context.check(call, r)
}

// Synchronize waits until the point has been reached. It is not bounded.
func (e *Event) Synchronize() error {
	const call = "cuEventSynchronize"
	if err := e.use(call); err != nil {
		return err
	}
	return e.context.check(call,
		e.context.asking(func() sys.Result { return e.context.table.EventSynchronize(e.context.handle, e.handle) }))
}

// Wait waits until the point has been reached or ctx ends, as [Stream.Wait] does.
func (e *Event) Wait(ctx context.Context) error { return poll(ctx, e.Query) }

// Since is the time from start to e on the device, with half a microsecond's resolution. Both must
// take the time and have been reached.
func (e *Event) Since(start *Event) (time.Duration, error) {
	const call = "cuEventElapsedTime"
	if err := cmp.Or(e.use(call), start.use(call)); err != nil {
		return 0, err
	}
	milliseconds := new(float32)
	err := e.context.check(call, e.context.table.EventElapsedTime(e.context.handle, milliseconds, start.handle, e.handle))
	return time.Duration(float64(*milliseconds) * float64(time.Millisecond)), err
}

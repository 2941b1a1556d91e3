package cuda

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// Stream is a queue of work on a device that runs in order. It is safe for concurrent use; callers
// order the work of two goroutines themselves.
type Stream struct {
	context *Context
	options StreamOptions
	handle  sys.Stream
	foreign bool
	closed  atomic.Bool
}

// StreamOptions say how a stream is made.
type StreamOptions struct {
	// Priority is clamped by the driver to [Context.PriorityRange]. Smaller numbers run first; 0 is
	// the least.
	Priority int
	// Blocking makes the stream wait for the legacy default stream and the other way round.
	Blocking bool
}

// NewStream makes a stream, which the caller closes. A stream that was closed idle is reused by the
// next one with the same options. Once a stream has been destroyed, the driver may put a new one
// into the hardware queue of a stream in use, and the two then wait for each other. A new stream is
// given a little work at once, because the driver chooses the queue no later than that.
func (c *Context) NewStream(o StreamOptions) (*Stream, error) {
	const call = "cuStreamCreateWithPriority"
	if err := c.use(call); err != nil {
		return nil, err
	}
	if handle, found := c.device.spares.take(o); found {
		return &Stream{context: c, options: o, handle: handle}, nil
	}
	flags := uint32(sys.StreamNonBlocking)
	if o.Blocking {
		flags = 0
	}
	handle := new(sys.Stream)
	err := c.check(call, c.table.StreamCreateWithPriority(c.handle, handle, flags, int32(o.Priority)))
	if err != nil {
		return nil, err
	}
	if err := c.device.spares.begin(c, *handle); err != nil {
		return nil, errors.Join(err, c.destroyStream(*handle))
	}
	return &Stream{context: c, options: o, handle: *handle}, nil
}

// WrapStream borrows an existing stream of this device's primary context: a cudaStream_t of
// PyTorch's, or one of the driver's own names, 0 and 1 for the legacy default stream, 2 for the
// thread's (of use between [Context.Bind] and unbind only). Close forgets it and leaves it open. A
// handle is its owner's: after the owner's Close it may be another stream's.
func (c *Context) WrapStream(handle uintptr) *Stream {
	return &Stream{context: c, handle: sys.Stream(handle), foreign: true}
}

// Close closes the stream; its work still runs. Further calls do nothing. An idle stream stays with
// the device, which gives its handle to the next [Context.NewStream] with the same options, so that
// it keeps its hardware queue; any other stream is destroyed.
func (s *Stream) Close() error {
	if s.closed.Swap(true) || s.foreign {
		return nil
	}
	if s.idle() && s.context.device.spares.put(spare{s.options, s.handle}) {
		return nil
	}
	return s.context.destroyStream(s.handle)
}

// idle reports whether the stream can be reused: it captures nothing, and its work has ended
// without an error.
func (s *Stream) idle() bool {
	if s.context.closed.Load() {
		return false // the context may be gone already
	}
	// A capture would break if the stream were asked whether it is done.
	if c, err := s.readCapture(); err != nil || CaptureStatus(c.status) != NotCapturing {
		return false
	}
	return s.query() == sys.Success
}

func (s *Stream) query() sys.Result {
	return s.context.asking(func() sys.Result { return s.context.table.StreamQuery(s.context.handle, s.handle) })
}

func (c *Context) destroyStream(s sys.Stream) error {
	return c.check("cuStreamDestroy", c.table.StreamDestroy(c.handle, s))
}

// use refuses a stream that is not there, or no longer.
func (s *Stream) use(call string) error {
	switch {
	case s == nil:
		return missing(call, "stream")
	case s.closed.Load():
		return closed(call)
	}
	return nil
}

// Context is the stream's context.
func (s *Stream) Context() *Context { return s.context }

// Handle is the driver's CUstream. After Close it may be another Stream's.
func (s *Stream) Handle() uintptr { return uintptr(s.handle) }

// Priority is the stream's priority after clamping.
func (s *Stream) Priority() (int, error) {
	const call = "cuStreamGetPriority"
	if err := s.use(call); err != nil {
		return 0, err
	}
	priority := new(int32)
	err := s.context.check(call, s.context.table.StreamGetPriority(s.context.handle, s.handle, priority))
	return int(*priority), err
}

// Query says whether all that was enqueued has happened. The error is that of the work, if it
// failed.
func (s *Stream) Query() (done bool, err error) {
	const call = "cuStreamQuery"
	if err := s.use(call); err != nil {
		return false, err
	}
	r := s.query()
	if Code(r) == ErrNotReady {
		return false, nil
	}
	return r == sys.Success, s.context.check(call, r)
}

// Synchronize waits until all that was enqueued has happened. It is not bounded: a kernel that
// waits for a dead peer keeps it for ever.
func (s *Stream) Synchronize() error {
	const call = "cuStreamSynchronize"
	if err := s.use(call); err != nil {
		return err
	}
	return s.context.check(call,
		s.context.asking(func() sys.Result { return s.context.table.StreamSynchronize(s.context.handle, s.handle) }))
}

// Wait waits until all that was enqueued has happened or ctx ends. It asks again and again: at
// once, then between other goroutines' turns, then less and less often, up to every millisecond.
func (s *Stream) Wait(ctx context.Context) error { return poll(ctx, s.Query) }

// WaitEvent makes later work of the stream wait for the work that the event has recorded.
func (s *Stream) WaitEvent(e *Event) error {
	const call = "cuStreamWaitEvent"
	if err := cmp.Or(s.use(call), e.use(call)); err != nil {
		return err
	}
	return s.context.check(call, s.context.table.StreamWaitEvent(s.context.handle, s.handle, e.handle, 0))
}

// CaptureStatus says whether a stream captures.
type CaptureStatus int32

const (
	// NotCapturing: it runs it.
	NotCapturing CaptureStatus = sys.CaptureNone
	// Capturing: it records it in a graph.
	Capturing CaptureStatus = sys.CaptureActive
	// CaptureInvalidated: it refuses it, because the capture went wrong and has not been ended.
	CaptureInvalidated CaptureStatus = sys.CaptureInvalidated
)

// CaptureStatus is the stream's state of capture.
func (s *Stream) CaptureStatus() (CaptureStatus, error) {
	c, err := s.captureInfo()
	return CaptureStatus(c.status), err
}

// CaptureID is the number of the stream's capture, unique in the process; 0 if it does not capture.
// A capture that went wrong has the number of all ones.
func (s *Stream) CaptureID() (uint64, error) {
	c, err := s.captureInfo()
	switch {
	case err != nil || CaptureStatus(c.status) == NotCapturing:
		return 0, err
	case CaptureStatus(c.status) == Capturing:
		return c.id, nil
	default:
		return math.MaxUint64, nil
	}
}

// captureInfo is the driver's description of a capture.
type captureInfo struct {
	id     uint64
	status int32
}

// captures hold the driver's answers: every enqueue asks, and should not allocate.
var captures = sync.Pool{New: func() any { return new(captureInfo) }}

func (s *Stream) captureInfo() (captureInfo, error) {
	if err := s.use(getCaptureInfo); err != nil {
		return captureInfo{}, err
	}
	return s.readCapture()
}

const getCaptureInfo = "cuStreamGetCaptureInfo"

// readCapture is captureInfo for a stream that may be closed.
func (s *Stream) readCapture() (captureInfo, error) {
	c := captures.Get().(*captureInfo)
	defer captures.Put(c)
	*c = captureInfo{status: sys.CaptureNone}
	err := s.context.check(getCaptureInfo,
		s.context.table.StreamGetCaptureInfo(s.context.handle, s.handle, &c.status, &c.id))
	return *c, err
}

package cudatest

import (
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

type stream struct {
	owner    *primary
	priority int32
	capture  *capture
	enqueued int // operations since it joined the capture
	joined   int // how many of them the capture's first stream has waited for
	busy     int // operations that run, on other goroutines
}

type event struct {
	owner    *primary
	timing   bool
	at       time.Time // zero: never recorded
	capture  *capture  // that it was recorded in
	stream   *stream   // the same
	enqueued int       // what the stream held then
}

// A capture is a graph in the making.
type capture struct {
	id      uint64
	graph   *graph
	origin  *stream
	thread  int
	global  bool // other threads may not ask whether work is done
	invalid bool
	forks   map[*stream]bool
}

// A graph is a list of operations, in the order in which they were enqueued.
type graph struct {
	owner *primary
	nodes []func() sys.Result
}

// onStream runs a call about a stream. Handles 0 to 2 are the default streams.
func (m *Machine) onStream(call string, c sys.Context, h sys.Stream, do func(*primary, *stream) sys.Result) sys.Result {
	return m.contextCall(call, c, func(p *primary) sys.Result {
		s := m.streams[h]
		if h <= 2 {
			if m.legacy[p] == nil {
				m.legacy[p] = &stream{owner: p}
			}
			s = m.legacy[p]
		}
		if s == nil {
			return m.misuse(cuda.ErrInvalidHandle, "%s on stream %#x, which was destroyed or never made", call, uintptr(h))
		}
		if r := m.own(call, "stream", s.owner, p); r != sys.Success {
			return r
		}
		return do(p, s)
	})
}

// enqueue runs an operation, or records it.
func (m *Machine) enqueue(call string, c sys.Context, h sys.Stream, op func(*primary) sys.Result) sys.Result {
	return m.onStream(call, c, h, func(p *primary, s *stream) sys.Result {
		if s.capture == nil {
			return m.occupy(p, s, op)
		}
		if s.capture.invalid {
			return sys.Result(cuda.ErrCaptureInvalidated)
		}
		s.capture.graph.nodes = append(s.capture.graph.nodes, func() sys.Result { return op(p) })
		s.enqueued++
		return sys.Success
	})
}

// occupy runs an operation and lets others know meanwhile that it does: kernels give up the lock.
func (m *Machine) occupy(p *primary, s *stream, op func(*primary) sys.Result) sys.Result {
	p.busy++
	s.busy++
	defer func() {
		p.busy--
		s.busy--
		m.idle.Broadcast()
	}()
	return op(p)
}

// completed asks whether a stream has done all that was enqueued, which it cannot answer while it
// captures.
func (m *Machine) completed(call string, c sys.Context, h sys.Stream, wait bool) sys.Result {
	return m.onStream(call, c, h, func(p *primary, s *stream) sys.Result {
		if r := m.hindered(call); r != sys.Success {
			return r
		}
		switch {
		case s.capture != nil:
			s.capture.invalid = true
			return m.misuse(cuda.ErrCaptureUnsupported, "%s on a stream that captures", call)
		case s.busy > 0 && !wait:
			return sys.Result(cuda.ErrNotReady)
		}
		for s.busy > 0 {
			m.idle.Wait()
		}
		return p.lost
	})
}

// streamCalls make streams and order them.
func (m *Machine) streamCalls(t *sys.Table) {
	t.StreamCreateWithPriority = func(c sys.Context, out *sys.Stream, _ uint32, priority int32) sys.Result {
		return m.contextCall("cuStreamCreateWithPriority", c, func(p *primary) sys.Result {
			*out = sys.Stream(m.handle())
			m.streams[*out] = &stream{owner: p, priority: min(max(priority, -5), 0)}
			return sys.Success
		})
	}
	t.StreamDestroy = func(c sys.Context, h sys.Stream) sys.Result {
		return m.onStream("cuStreamDestroy", c, h, func(_ *primary, s *stream) sys.Result {
			if s.capture != nil || h <= 2 {
				return m.misuse(cuda.ErrInvalidValue,
					"cuStreamDestroy of stream %#x, which captures or is a default stream", uintptr(h))
			}
			delete(m.streams, h)
			return sys.Success
		})
	}
	t.StreamSynchronize = func(c sys.Context,
		h sys.Stream,
	) sys.Result {
		return m.completed("cuStreamSynchronize", c, h, true)
	}
	t.StreamQuery = func(c sys.Context, h sys.Stream) sys.Result { return m.completed("cuStreamQuery", c, h, false) }
	t.StreamGetPriority = func(c sys.Context, h sys.Stream, out *int32) sys.Result {
		return m.onStream("cuStreamGetPriority", c, h,
			func(_ *primary, s *stream) sys.Result { *out = s.priority; return sys.Success })
	}
	t.StreamWaitEvent = func(c sys.Context, h sys.Stream, eh sys.Event, _ uint32) sys.Result {
		return m.onStream("cuStreamWaitEvent", c, h, func(_ *primary, s *stream) sys.Result {
			e := m.events[eh]
			if e == nil {
				return m.misuse(cuda.ErrInvalidHandle,
					"cuStreamWaitEvent of event %#x, which was destroyed or never made", uintptr(eh))
			}
			return m.follow(s, e)
		})
	}
	t.StreamGetCaptureInfo = func(c sys.Context, h sys.Stream, status *int32, id *uint64) sys.Result {
		return m.onStream("cuStreamGetCaptureInfo", c, h, func(_ *primary, s *stream) sys.Result {
			switch {
			case s.capture == nil:
				*status = sys.CaptureNone
			case s.capture.invalid:
				*status = sys.CaptureInvalidated
			default:
				*status, *id = sys.CaptureActive, s.capture.id
			}
			return sys.Success
		})
	}
}

// follow makes a stream wait for an event: inside a capture this is what forks and joins.
func (m *Machine) follow(s *stream, e *event) sys.Result {
	switch {
	case e.capture == nil && s.capture == nil:
		return sys.Success
	case e.capture == nil:
		s.capture.invalid = true
		return m.misuse(cuda.ErrCaptureIsolation, "a stream that captures waits for an event from outside of the capture")
	case !m.running[e.capture]:
		return m.misuse(cuda.ErrInvalidValue, "a stream waits for an event of a capture that has ended")
	case s.capture == nil:
		s.capture, s.enqueued, s.joined = e.capture, 1, 0
		e.capture.forks[s] = true
	case s.capture != e.capture:
		s.capture.invalid, e.capture.invalid = true, true
		return m.misuse(902, "a stream waits for an event of another capture")
	}
	if e.stream != s {
		e.stream.joined = e.enqueued
	}
	return sys.Success
}

// eventCalls record points in streams.
func (m *Machine) eventCalls(t *sys.Table) {
	onEvent := func(call string, c sys.Context, h sys.Event, do func(*event) sys.Result) sys.Result {
		return m.contextCall(call, c, func(p *primary) sys.Result {
			e := m.events[h]
			if e == nil {
				return m.misuse(cuda.ErrInvalidHandle, "%s on event %#x, which was destroyed or never made", call, uintptr(h))
			}
			if r := m.own(call, "event", e.owner, p); r != sys.Success {
				return r
			}
			return do(e)
		})
	}
	t.EventCreate = func(c sys.Context, out *sys.Event, flags uint32) sys.Result {
		return m.contextCall("cuEventCreate", c, func(p *primary) sys.Result {
			*out = sys.Event(m.handle())
			m.events[*out] = &event{owner: p, timing: flags&sys.EventDisableTiming == 0}
			return sys.Success
		})
	}
	t.EventDestroy = func(c sys.Context, h sys.Event) sys.Result {
		return onEvent("cuEventDestroy", c, h, func(*event) sys.Result { delete(m.events, h); return sys.Success })
	}
	t.EventRecord = func(c sys.Context, h sys.Event, sh sys.Stream) sys.Result {
		return m.onStream("cuEventRecord", c, sh, func(p *primary, s *stream) sys.Result {
			e := m.events[h]
			if e == nil {
				return m.misuse(cuda.ErrInvalidHandle, "cuEventRecord of event %#x, which was destroyed or never made", uintptr(h))
			}
			if r := m.own("cuEventRecord", "event", e.owner, p); r != sys.Success {
				return r
			}
			e.at, e.capture, e.stream, e.enqueued = time.Now(), s.capture, s, s.enqueued
			return sys.Success
		})
	}
	completed := func(call string) func(sys.Context, sys.Event) sys.Result {
		return func(c sys.Context, h sys.Event) sys.Result {
			return onEvent(call, c, h, func(e *event) sys.Result {
				if r := m.hindered(call); r != sys.Success {
					return r
				}
				if e.capture != nil {
					e.capture.invalid = true
					return m.misuse(907, "%s of an event that was recorded in a capture", call)
				}
				return sys.Success
			})
		}
	}
	t.EventQuery, t.EventSynchronize = completed("cuEventQuery"), completed("cuEventSynchronize")
	t.EventElapsedTime = func(c sys.Context, out *float32, start, end sys.Event) sys.Result {
		return onEvent("cuEventElapsedTime", c, start, func(a *event) sys.Result {
			b := m.events[end]
			if b == nil || !a.timing || !b.timing || a.at.IsZero() || b.at.IsZero() {
				return sys.Result(cuda.ErrInvalidHandle)
			}
			*out = float32(b.at.Sub(a.at).Seconds() * 1000)
			return sys.Success
		})
	}
}

package cudatest

import (
	"slices"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// graphCalls capture, and run what was captured.
func (m *Machine) graphCalls(t *sys.Table) {
	m.captureCalls(t)
	t.GraphGetNodes = func(h sys.Graph, _ *uintptr, n *uint64) sys.Result {
		return m.call("cuGraphGetNodes", func() sys.Result {
			g := m.graphs[h]
			if g == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuGraphGetNodes of graph %#x, which was destroyed", uintptr(h))
			}
			*n = uint64(len(g.nodes))
			return sys.Success
		})
	}
	t.GraphDestroy = func(h sys.Graph) sys.Result {
		return m.call("cuGraphDestroy", func() sys.Result {
			if m.graphs[h] == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuGraphDestroy of graph %#x, which was destroyed", uintptr(h))
			}
			delete(m.graphs, h)
			return sys.Success
		})
	}
	t.GraphInstantiateWithFlags = func(c sys.Context, out *sys.GraphExec, h sys.Graph, _ uint64) sys.Result {
		return m.still("cuGraphInstantiateWithFlags", c, func(p *primary) sys.Result {
			g := m.graphs[h]
			if g == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuGraphInstantiateWithFlags of graph %#x, which was destroyed", uintptr(h))
			}
			*out = sys.GraphExec(m.handle())
			m.execs[*out] = &graph{owner: p, nodes: slices.Clone(g.nodes)}
			return sys.Success
		})
	}
	t.GraphExecDestroy = func(h sys.GraphExec) sys.Result {
		return m.call("cuGraphExecDestroy", func() sys.Result {
			if m.execs[h] == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuGraphExecDestroy of graph %#x, which was destroyed", uintptr(h))
			}
			delete(m.execs, h)
			return sys.Success
		})
	}
	t.GraphLaunch = func(c sys.Context, h sys.GraphExec, s sys.Stream) sys.Result {
		return m.enqueue("cuGraphLaunch", c, s, func(p *primary) sys.Result {
			return m.onExec("cuGraphLaunch", h, p, func(g *graph) sys.Result {
				for _, node := range g.nodes {
					if r := node(); r != sys.Success {
						return r
					}
				}
				return sys.Success
			})
		})
	}
	t.GraphUpload = func(c sys.Context, h sys.GraphExec, s sys.Stream) sys.Result {
		return m.onStream("cuGraphUpload", c, s, func(p *primary, _ *stream) sys.Result {
			return m.onExec("cuGraphUpload", h, p, func(*graph) sys.Result { return sys.Success })
		})
	}
}

func (m *Machine) onExec(call string, h sys.GraphExec, p *primary, do func(*graph) sys.Result) sys.Result {
	g := m.execs[h]
	if g == nil {
		return m.misuse(cuda.ErrInvalidValue, "%s of graph %#x, which was destroyed", call, uintptr(h))
	}
	if r := m.own(call, "graph", g.owner, p); r != sys.Success {
		return r
	}
	return do(g)
}

// CaptureElsewhere begins a capture in global mode by another thread, of a stream that the program
// does not know, as other libraries do. end says whether it held.
func (m *Machine) CaptureElsewhere() (end func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &capture{thread: -1, global: true}
	m.running[k] = true
	return func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, k)
		if k.invalid {
			return cuda.ErrCaptureInvalidated
		}
		return nil
	}
}

// hindered breaks the captures that forbid what a thread is about to do, unless its mode is
// relaxed.
func (m *Machine) hindered(call string) sys.Result {
	if m.modes[thread()] == sys.CaptureRelaxed {
		return sys.Success
	}
	for k := range m.running {
		if k.global {
			k.invalid = true
			return m.misuse(cuda.ErrCaptureUnsupported, "%s while another thread captures", call)
		}
	}
	return sys.Success
}

func (m *Machine) captureCalls(t *sys.Table) {
	t.ThreadExchangeStreamCaptureMode = func(mode *int32) sys.Result {
		return m.call("cuThreadExchangeStreamCaptureMode", func() sys.Result {
			if *mode < sys.CaptureGlobal || *mode > sys.CaptureRelaxed {
				return m.misuse(cuda.ErrInvalidValue, "cuThreadExchangeStreamCaptureMode to %d", *mode)
			}
			id := thread()
			*mode, m.modes[id] = m.modes[id], *mode
			return sys.Success
		})
	}
	t.StreamBeginCapture = func(c sys.Context, h sys.Stream, mode int32) sys.Result {
		return m.onStream("cuStreamBeginCapture", c, h, func(p *primary, s *stream) sys.Result {
			switch {
			case h <= 2:
				return sys.Result(cuda.ErrCaptureUnsupported)
			case s.capture != nil:
				s.capture.invalid = true
				return m.misuse(cuda.ErrInvalidValue, "cuStreamBeginCapture on a stream that captures")
			case mode != sys.CaptureThreadLocal:
				return m.misuse(cuda.ErrInvalidValue, "a capture in mode %d would hinder other threads", mode)
			}
			m.next += 0x10
			s.capture = &capture{
				id: uint64(m.next), graph: &graph{owner: p}, origin: s, thread: thread(),
				forks: map[*stream]bool{},
			}
			m.running[s.capture] = true
			return sys.Success
		})
	}
	t.StreamEndCapture = func(c sys.Context, h sys.Stream, out *sys.Graph) sys.Result {
		return m.onStream("cuStreamEndCapture", c, h, func(_ *primary, s *stream) sys.Result {
			k := s.capture
			switch {
			case k == nil:
				return m.misuse(401, "cuStreamEndCapture on a stream that does not capture")
			case k.thread != thread():
				return m.misuse(cuda.ErrCaptureWrongThread, "cuStreamEndCapture on another thread than cuStreamBeginCapture")
			case k.origin != s:
				k.invalid = true
				return m.misuse(903, "cuStreamEndCapture on a stream that only joined the capture")
			}
			delete(m.running, k)
			s.capture = nil
			unjoined := false
			for fork := range k.forks {
				unjoined = unjoined || fork.joined < fork.enqueued
				fork.capture = nil
			}
			switch {
			case k.invalid:
				return sys.Result(cuda.ErrCaptureInvalidated)
			case unjoined:
				return m.misuse(cuda.ErrCaptureUnjoined, "cuStreamEndCapture with a stream that has not been joined")
			}
			*out = sys.Graph(m.handle())
			m.graphs[*out] = k.graph
			return sys.Success
		})
	}
}

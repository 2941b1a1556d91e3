package cuda

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// Graph is work that was recorded instead of run.
type Graph struct {
	context *Context
	handle  sys.Graph
	closed  atomic.Bool
}

// Capture records the work that fn enqueues in the stream, and in streams that come to wait for it,
// instead of running it. fn runs on the calling goroutine, locked to its thread, and must join all
// these streams by events. The caller closes the graph.
func (s *Stream) Capture(fn func() error) (g *Graph, err error) {
	if fn == nil {
		return nil, missing("cuStreamBeginCapture", "function")
	}
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	finished := false
	defer func() {
		graph, ended := s.EndCapture()
		switch {
		case !finished || err != nil: // fn failed or panicked; that the capture then fails too says nothing new
			if graph != nil {
				err = errors.Join(err, graph.Close())
			}
		default:
			g, err = graph, ended
		}
	}()
	err = fn()
	finished = true
	return nil, err
}

// BeginCapture starts to record, and locks the goroutine to its thread: the driver wants the same
// thread at the end. Meanwhile this thread may not make calls that a capture cannot hold, as an
// allocation; other threads may.
func (s *Stream) BeginCapture() error {
	const call = "cuStreamBeginCapture"
	if err := s.use(call); err != nil {
		return err
	}
	runtime.LockOSThread()
	err := s.context.check(call, s.context.table.StreamBeginCapture(s.context.handle, s.handle, sys.CaptureThreadLocal))
	if err != nil {
		runtime.UnlockOSThread()
	}
	return err
}

// EndCapture ends what BeginCapture began, on the same goroutine, and unlocks it from its thread.
// The stream then runs work again, also after an error.
func (s *Stream) EndCapture() (*Graph, error) {
	const call = "cuStreamEndCapture"
	defer runtime.UnlockOSThread()
	if err := s.use(call); err != nil {
		return nil, err
	}
	handle := new(sys.Graph)
	err := s.context.check(call, s.context.table.StreamEndCapture(s.context.handle, s.handle, handle))
	if err != nil {
		return nil, err
	}
	return &Graph{context: s.context, handle: *handle}, nil
}

// Close destroys the graph. Graphs that were instantiated from it remain. Further calls do nothing.
func (g *Graph) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	return g.context.check("cuGraphDestroy", g.context.table.GraphDestroy(g.handle))
}

// Handle is the driver's CUgraph.
func (g *Graph) Handle() uintptr { return uintptr(g.handle) }

// Nodes is how many operations the graph holds.
func (g *Graph) Nodes() (int, error) {
	const call = "cuGraphGetNodes"
	if g.closed.Load() {
		return 0, closed(call)
	}
	count := new(uint64)
	err := g.context.check(call, g.context.table.GraphGetNodes(g.handle, nil, count))
	return int(*count), err
}

// GraphExec is a graph made ready to run, any number of times. Objects that its operations refer to
// (memory, modules) must live as long.
type GraphExec struct {
	context *Context
	handle  sys.GraphExec
	closed  atomic.Bool
}

// Instantiate makes the graph ready to run. The caller closes the result.
func (g *Graph) Instantiate() (*GraphExec, error) {
	const call = "cuGraphInstantiateWithFlags"
	if g.closed.Load() {
		return nil, closed(call)
	}
	handle := new(sys.GraphExec)
	if err := g.context.check(call, g.context.table.GraphInstantiateWithFlags(g.context.handle, handle,
		g.handle, 0)); err != nil {
		return nil, err
	}
	return &GraphExec{context: g.context, handle: *handle}, nil
}

// Upload does the set-up of the first launch, so that this takes no longer than later ones.
func (e *GraphExec) Upload(s *Stream) error {
	const call = "cuGraphUpload"
	if e.closed.Load() {
		return closed(call)
	}
	if err := s.use(call); err != nil {
		return err
	}
	return e.context.check(call, e.context.table.GraphUpload(e.context.handle, e.handle, s.handle))
}

// Launch enqueues the graph. A GraphExec runs once at a time: the next launch waits for the last.
func (e *GraphExec) Launch(s *Stream) error {
	const call = "cuGraphLaunch"
	if e.closed.Load() {
		return closed(call)
	}
	if err := s.use(call); err != nil {
		return err
	}
	return e.context.check(call, e.context.table.GraphLaunch(e.context.handle, e.handle, s.handle))
}

// Close destroys the executable graph; a launch that is under way ends first. Further calls do
// nothing.
func (e *GraphExec) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.context.check("cuGraphExecDestroy", e.context.table.GraphExecDestroy(e.handle))
}

package cuda_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func TestStream(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	least, greatest, err := c.PriorityRange()
	ok(t, err)
	if least != 0 || greatest != -5 {
		t.Errorf("priorities from %d to %d", least, greatest)
	}
	s, err := c.NewStream(cuda.StreamOptions{Priority: -100, Blocking: true})
	keep(t, s, err)
	if p, err := s.Priority(); p != -5 || err != nil {
		t.Errorf("priority %d, %v", p, err)
	}
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("query: %v, %v", done, err)
	}
	ok(t, s.Synchronize())
	ok(t, s.Wait(t.Context()))
	if status, err := s.CaptureStatus(); status != cuda.NotCapturing || err != nil {
		t.Errorf("capture status %d, %v", status, err)
	}
}

// TestWrapStream: a foreign stream works, and stays open when its wrapping is closed.
func TestWrapStream(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	own := newStream(t, c)
	wrapped := c.WrapStream(own.Handle())
	ok(t, wrapped.Synchronize())
	ok(t, wrapped.Close())
	ok(t, own.Synchronize())
	if n := m.Calls("cuStreamDestroy"); n != 0 {
		t.Errorf("%d streams were destroyed", n)
	}
	for _, handle := range []uintptr{0, 1, 2} {
		ok(t, c.WrapStream(handle).Synchronize())
	}
}

// TestStreamReuse: a stream that is closed idle is the next one of the same options, and of no
// others, in a new object.
func TestStreamReuse(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	for _, o := range []cuda.StreamOptions{{}, {Priority: -2}, {Blocking: true}, {Priority: -2, Blocking: true}} {
		made := m.Calls("cuStreamCreateWithPriority")
		first, err := c.NewStream(o)
		ok(t, err)
		if n := m.Calls("cuStreamCreateWithPriority") - made; n != 1 {
			t.Errorf("%+v: a stream of other options was used again", o)
		}
		ok(t, first.Synchronize())
		ok(t, first.Close())
		again, err := c.NewStream(o)
		keep(t, again, err)
		if again == first || again.Handle() != first.Handle() {
			t.Errorf("%+v: stream %#x at %p came after %#x at %p", o, again.Handle(), again, first.Handle(), first)
		}
		ok(t, first.Close()) // which does nothing to the other
		wants(t, first.Synchronize(), cuda.ErrClosed)
		ok(t, again.Synchronize())
		if p, err := again.Priority(); p != o.Priority || err != nil {
			t.Errorf("%+v: priority %d, %v", o, p, err)
		}
		other, err := c.NewStream(o)
		ok(t, err)
		if other.Handle() == again.Handle() {
			t.Errorf("%+v: stream %#x was given out twice", o, other.Handle())
		}
		ok(t, other.Close()) // for those of the next options not to get
	}
	if n := m.Calls("cuStreamDestroy"); n != 0 {
		t.Errorf("%d streams were destroyed", n)
	}
}

// TestStreamNotReused: a stream that others could come upon something in is destroyed.
func TestStreamNotReused(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	started, finish := make(chan struct{}), make(chan struct{})
	m.Kernel("slow", func(*cudatest.Call) { close(started); <-finish })
	launch, err := loadFunction(t, c, "slow").Prepare(cuda.LaunchConfig{})
	ok(t, err)
	closed := func(why string, s *cuda.Stream) {
		t.Helper()
		before := m.Calls("cuStreamDestroy")
		ok(t, s.Close())
		ok(t, s.Close())
		if n := m.Calls("cuStreamDestroy") - before; n != 1 {
			t.Errorf("%s: %d streams were destroyed, want one", why, n)
		}
		if next := newStream(t, c); next.Handle() == s.Handle() {
			t.Errorf("%s: the stream was given out again", why)
		}
	}
	var streams [3]*cuda.Stream // at once, or those that end idle would serve as the next
	for i := range streams {
		streams[i], err = c.NewStream(cuda.StreamOptions{})
		ok(t, err)
	}
	ended := make(chan error)
	go func() { ended <- launch.Start(streams[0]) }()
	<-started
	closed("busy", streams[0])
	close(finish)
	ok(t, <-ended)
	for i, call := range []string{"cuStreamQuery", "cuStreamGetCaptureInfo"} {
		m.Fail(call, 0, cuda.ErrOutOfMemory)
		closed(call+" failed", streams[1+i])
	}
}

// TestCloseInCapture leaves the capture to the driver: neither is the stream kept, nor is it asked
// what would break a capture that it has joined.
func TestCloseInCapture(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	c := primary(t, d, 0)
	s, err := c.NewStream(cuda.StreamOptions{})
	ok(t, err)
	side, err := c.NewStream(cuda.StreamOptions{})
	ok(t, err)
	e := newEvent(t, c, cuda.EventOptions{})
	ok(t, s.BeginCapture())
	defer runtime.UnlockOSThread()
	ok(t, e.Record(s))
	ok(t, side.WaitEvent(e))
	for _, captures := range []*cuda.Stream{side, s} {
		wants(t, captures.Close(), cuda.ErrInvalidValue) // what the fake driver says of it
		if n := m.Calls("cuStreamQuery"); n != 0 {
			t.Errorf("%d questions whether the capture is done", n)
		}
		if status, err := c.WrapStream(captures.Handle()).CaptureStatus(); status != cuda.Capturing || err != nil {
			t.Errorf("status %d, %v: the capture is broken", status, err)
		}
		if next := newStream(t, c); next.Handle() == captures.Handle() {
			t.Error("a stream that captures was given out again")
		}
	}
}

// TestDeviceKeepsStreams, as many as there are queues for, for whichever Context wants them, until
// its last one closes.
func TestDeviceKeepsStreams(t *testing.T) {
	const kept, more = 32, 3
	m, d := openFaulty(t, cudatest.Config{})
	c, err := device(t, d, 0).Primary()
	ok(t, err)
	other, err := device(t, d, 0).Primary()
	ok(t, err)
	var streams []*cuda.Stream
	for range kept + more {
		s, err := c.NewStream(cuda.StreamOptions{})
		ok(t, err)
		streams = append(streams, s)
	}
	late, err := c.NewStream(cuda.StreamOptions{})
	ok(t, err)
	count := func(when, call string, want int) {
		t.Helper()
		if n := m.Calls(call); n != want {
			t.Errorf("%s %d calls of %s, want %d", when, n, call, want)
		}
	}
	for _, s := range streams {
		ok(t, s.Close())
	}
	count("at first", "cuStreamDestroy", more)
	ok(t, c.Close())
	count("after one Context's close", "cuStreamDestroy", more)
	ok(t, late.Close())
	count("after one more", "cuStreamDestroy", more+1)
	s, err := other.NewStream(cuda.StreamOptions{})
	ok(t, err)
	ok(t, s.Close())
	count("for the other Context", "cuStreamCreateWithPriority", kept+more+1)
	m.Fail("cuStreamDestroy", 1, cuda.ErrInvalidHandle)
	m.Fail("cuDevicePrimaryCtxRelease", 0, cuda.ErrDeinitialized)
	err = other.Close()
	wants(t, err, cuda.ErrInvalidHandle) // and the others are destroyed all the same
	wants(t, err, cuda.ErrDeinitialized)
	count("after the last one's close", "cuStreamDestroy", kept+more+1)
	ok(t, other.Close())

	c, err = device(t, d, 0).Primary()
	ok(t, err)
	s, err = c.NewStream(cuda.StreamOptions{})
	ok(t, err)
	count("anew", "cuStreamCreateWithPriority", kept+more+2)
	ok(t, errors.Join(s.Close(), c.Close()))
	count("in the end", "cuStreamDestroy", kept+more+2)
}

// TestContextAndStreamsEndTogether: whoever is first, no stream is left behind.
func TestContextAndStreamsEndTogether(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	primary(t, d, 0) // keeps the device's context alive
	for range 200 {
		c, err := device(t, d, 0).Primary()
		ok(t, err)
		ends := []func() error{c.Close}
		for range 4 {
			s, err := c.NewStream(cuda.StreamOptions{})
			ok(t, err)
			ends = append(ends, s.Close)
		}
		var wg sync.WaitGroup
		for _, end := range ends {
			wg.Go(func() {
				if err := end(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// TestStreamsInTurns: goroutines make and close streams of one context, and none gets another's.
func TestStreamsInTurns(t *testing.T) {
	const goroutines, rounds = 8, 100
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	var inUse sync.Map
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				s, err := c.NewStream(cuda.StreamOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				if _, twice := inUse.LoadOrStore(s.Handle(), true); twice {
					t.Errorf("stream %#x is in use twice", s.Handle())
				}
				err = s.Synchronize()
				inUse.Delete(s.Handle())
				// Whoever closes first does it.
				var closers sync.WaitGroup
				for range 2 {
					closers.Go(func() {
						if err := s.Close(); err != nil {
							t.Error(err)
						}
					})
				}
				closers.Wait()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	made, destroyed := m.Calls("cuStreamCreateWithPriority"), m.Calls("cuStreamDestroy")
	if made > goroutines || destroyed != 0 {
		t.Errorf("%d streams were made and %d destroyed for %d goroutines", made, destroyed, goroutines)
	}
}

// TestNotReady: Query says so without an error, and Wait asks again.
func TestNotReady(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	s, e := newStream(t, c), newEvent(t, c, cuda.EventOptions{})
	for call, query := range map[string]func() (bool, error){"cuStreamQuery": s.Query, "cuEventQuery": e.Query} {
		m.Fail(call, 0, cuda.ErrNotReady)
		if done, err := query(); done || err != nil {
			t.Errorf("%s: %v, %v", call, done, err)
		}
		if done, err := query(); !done || err != nil {
			t.Errorf("%s the second time: %v, %v", call, done, err)
		}
	}
	for call, wait := range map[string]func(context.Context) error{"cuStreamQuery": s.Wait, "cuEventQuery": e.Wait} {
		before := m.Calls(call)
		for range 210 { // beyond the turns that are taken at once
			m.Fail(call, 0, cuda.ErrNotReady)
		}
		ok(t, wait(t.Context()))
		if n := m.Calls(call) - before; n != 211 {
			t.Errorf("%s was called %d times, want 211", call, n)
		}
		m.Fail(call, 3, cuda.ErrIllegalAddress)
		for range 3 {
			m.Fail(call, 0, cuda.ErrNotReady)
		}
		wants(t, wait(t.Context()), cuda.ErrIllegalAddress)
	}
}

// TestWaitEnds when its context does, with the context's cause.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := openFaulty(t, cudatest.Config{})
		c, err := device(t, d, 0).Primary()
		ok(t, err)
		s, err := c.NewStream(cuda.StreamOptions{})
		ok(t, err)
		for range 20000 {
			m.Fail("cuStreamQuery", 0, cuda.ErrNotReady)
		}
		late := errors.New("too late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		start := time.Now()
		wants(t, s.Wait(ctx), late)
		if took := time.Since(start); took != time.Second {
			t.Errorf("the wait ended after %v", took)
		}
		cause := errors.New("the peer is gone")
		stopped, stop := context.WithCancelCause(t.Context())
		stop(cause)
		before := m.Calls("cuStreamQuery")
		wants(t, s.Wait(stopped), cause)
		if n := m.Calls("cuStreamQuery") - before; n != 1 {
			t.Errorf("%d questions after the context's end, want one", n)
		}
	})
}

func TestEvents(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	s, other := newStream(t, c), newStream(t, c)
	a, b := newEvent(t, c, cuda.EventOptions{Timing: true}), newEvent(t, c,
		cuda.EventOptions{Timing: true, BlockingSync: true})
	ok(t, a.Record(s))
	ok(t, other.WaitEvent(a))
	ok(t, b.Record(other))
	ok(t, b.Synchronize())
	ok(t, b.Wait(t.Context()))
	forth, err := b.Since(a)
	ok(t, err)
	back, err := a.Since(b)
	ok(t, err)
	if forth < 0 || forth > time.Minute || back != -forth {
		t.Errorf("%v from a to b, %v from b to a", forth, back)
	}
	untimed := newEvent(t, c, cuda.EventOptions{})
	ok(t, untimed.Record(s))
	_, err = untimed.Since(a)
	wants(t, err, cuda.ErrInvalidHandle)
}

// TestClosed: no method of a closed object reaches the driver, least of all with a handle that now
// means something else.
func TestClosed(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	m.Kernel("nothing", func(*cudatest.Call) {})
	s, e := newStream(t, c), newEvent(t, c, cuda.EventOptions{})
	module, err := c.LoadModule([]byte("image"))
	keep(t, module, err)
	f, err := module.Function("nothing")
	ok(t, err)
	launch, err := f.Prepare(cuda.LaunchConfig{})
	ok(t, err)
	graph, err := s.Capture(func() error { return launch.Start(s) })
	keep(t, graph, err)
	exec, err := graph.Instantiate()
	keep(t, exec, err)
	v, err := c.AllocVirtual(1, cuda.AllocationOptions{Share: cuda.ShareFD})
	keep(t, v, err)
	part := v.Allocations()[0]
	for _, o := range []interface{ Close() error }{v, exec, graph, module, e, s} {
		ok(t, o.Close())
	}
	for name, call := range map[string]func() error{
		"Query":         func() error { _, err := s.Query(); return err },
		"Synchronize":   s.Synchronize,
		"Priority":      func() error { _, err := s.Priority(); return err },
		"WaitEvent":     func() error { return s.WaitEvent(e) },
		"CaptureStatus": func() error { _, err := s.CaptureStatus(); return err },
		"BeginCapture":  s.BeginCapture,
		"Capture":       func() error { _, err := s.Capture(func() error { return nil }); return err },
		"Upload":        func() error { return s.Upload(1, []byte{1}) },
		"Download":      func() error { return s.Download([]byte{1}, 1) },
		"Copy":          func() error { return s.Copy(1, 1, 1) },
		"CopyPeer":      func() error { return s.CopyPeer(1, c, 1, c, 1) },
		"Memset":        func() error { return s.Memset(1, 1, 1) },
		"Memset32":      func() error { return s.Memset32(1, 1, 1) },
		"Record":        func() error { return e.Record(s) },
		"event Query":   func() error { _, err := e.Query(); return err },
		"event Sync":    e.Synchronize,
		"Since":         func() error { _, err := e.Since(e); return err },
		"Function":      func() error { _, err := module.Function("nothing"); return err },
		"Global":        func() error { _, _, err := module.Global("nothing"); return err },
		"Attributes":    func() error { _, err := f.Attributes(); return err },
		"SetMaxDynamic": func() error { return f.SetMaxDynamicShared(1) },
		"Occupancy":     func() error { _, err := f.Occupancy(32, 0); return err },
		"MaxClusters":   func() error { _, err := f.MaxClusters(cuda.LaunchConfig{}); return err },
		"Prepare":       func() error { _, err := f.Prepare(cuda.LaunchConfig{}); return err },
		"Start":         func() error { return launch.Start(s) },
		"Nodes":         func() error { _, err := graph.Nodes(); return err },
		"Instantiate":   func() error { _, err := graph.Instantiate(); return err },
		"graph Launch":  func() error { return exec.Launch(s) },
		"graph Upload":  func() error { return exec.Upload(s) },
		"ExportFD":      func() error { _, err := part.ExportFD(); return err },
		"ExportFabric":  func() error { _, err := part.ExportFabric(); return err },
		"Share":         func() error { _, err := part.Share(); return err },
		"Map":           func() error { _, err := c.Map([]*cuda.Allocation{part}); return err },
	} {
		if err := call(); !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
}

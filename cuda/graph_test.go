package cuda_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestGraph records a copy, a kernel and a fork, and runs them twice.
func TestGraph(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	m.Kernel("add", func(c *cudatest.Call, at cuda.Pointer, n int32, v byte) {
		for i := range c.Bytes(at, int(n)) {
			c.Bytes(at, int(n))[i] += v
		}
	})
	f := loadFunction(t, c, "add")
	a, b := alloc(t, c, 64), alloc(t, c, 64)
	s, side := newStream(t, c), newStream(t, c)
	forked, joined := newEvent(t, c, cuda.EventOptions{}), newEvent(t, c, cuda.EventOptions{})
	l, err := f.Prepare(cuda.LaunchConfig{}, a.Pointer(), int32(64), byte(1))
	ok(t, err)

	graph, err := s.Capture(func() error {
		if status, err := s.CaptureStatus(); status != cuda.Capturing || err != nil {
			t.Errorf("status %d, %v", status, err)
		}
		return errors.Join(
			l.Start(s),
			forked.Record(s), side.WaitEvent(forked),
			side.Copy(b.Pointer(), a.Pointer(), 64),
			joined.Record(side), s.WaitEvent(joined),
			s.Memset(a.Pointer(), 100, 1),
		)
	})
	keep(t, graph, err)
	if v, err := cuda.Arg[byte](l, 2); err != nil {
		t.Error(err)
	} else {
		*v = 50 // the graph has its own copy
	}
	if status, err := side.CaptureStatus(); status != cuda.NotCapturing || err != nil {
		t.Errorf("status %d, %v after the end", status, err)
	}
	if n, err := graph.Nodes(); n != 3 || err != nil {
		t.Errorf("%d nodes, %v", n, err)
	}
	if m.Bytes(a.Pointer(), 1)[0] != 0 {
		t.Error("the capture ran what it recorded")
	}
	exec, err := graph.Instantiate()
	keep(t, exec, err)
	ok(t, graph.Close()) // the executable is its own
	ok(t, exec.Upload(s))
	ok(t, exec.Launch(s))
	ok(t, exec.Launch(s))
	if got := m.Bytes(a.Pointer(), 2); got[0] != 100 || got[1] != 2 {
		t.Errorf("a is %v, want 100 and 2", got)
	}
	if got := m.Bytes(b.Pointer(), 2); got[0] != 101 || got[1] != 2 {
		t.Errorf("b is %v, want 101 and 2", got)
	}
}

// TestCaptureFails: whatever happens inside, the stream works afterwards and nothing is left.
func TestCaptureFails(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	c := primary(t, d, 0)
	s := newStream(t, c)
	gone := errors.New("gone")
	_, err := s.Capture(func() error { return gone })
	wants(t, err, gone)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = s.Capture(func() error { panic("in a capture") })
	}()
	if n := m.Calls("cuGraphDestroy"); n != 2 {
		t.Errorf("%d graphs were destroyed, want those of both", n)
	}
	// What a capture cannot hold invalidates it.
	_, err = s.Capture(func() error {
		if _, err := c.Alloc(16); !errors.Is(err, cuda.ErrCaptureUnsupported) {
			t.Errorf("allocation in a capture: %v", err)
		}
		if status, err := s.CaptureStatus(); status != cuda.CaptureInvalidated || err != nil {
			t.Errorf("status %d, %v", status, err)
		}
		return nil
	})
	wants(t, err, cuda.ErrCaptureInvalidated)
	m.Fail("cuStreamBeginCapture", 0, cuda.ErrOutOfMemory)
	_, err = s.Capture(func() error { t.Error("ran"); return nil })
	wants(t, err, cuda.ErrOutOfMemory)
	ok(t, s.Synchronize())
}

// TestCaptureKeepsItsThread: another goroutine takes the thread whenever it is free, and keeps it;
// a capture's is not.
func TestCaptureKeepsItsThread(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	s, memory := newStream(t, c), alloc(t, c, 64)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	took, done := make(chan struct{}), make(chan struct{})
	defer close(done)
	graph, err := s.Capture(func() error {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			took <- struct{}{}
			<-done
		}()
		<-took
		return s.Memset(memory.Pointer(), 1, 64)
	})
	keep(t, graph, err)
}

// TestAskingInACaptureElsewhere: what another library captures in global mode neither keeps this
// package from asking whether work is done nor is broken by it.
func TestAskingInACaptureElsewhere(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	s, memory := newStream(t, c), alloc(t, c, 64)
	e, err := c.NewEvent(cuda.EventOptions{})
	keep(t, e, err)
	end := m.CaptureElsewhere()
	ok(t, s.Memset(memory.Pointer(), 1, 64))
	ok(t, e.Record(s))
	raw := make([]byte, 64)
	for name, ask := range map[string]func() error{
		"Stream.Query":       func() error { _, err := s.Query(); return err },
		"Stream.Wait":        func() error { return s.Wait(t.Context()) },
		"Stream.Synchronize": s.Synchronize,
		"Event.Query":        func() error { _, err := e.Query(); return err },
		"Event.Synchronize":  e.Synchronize,
		"Upload":             func() error { return c.Upload(memory.Pointer(), raw) },
		"Download":           func() error { return c.Download(raw, memory.Pointer()) },
	} {
		if err := ask(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := end(); err != nil {
		t.Errorf("the capture: %v", err)
	}
}

// TestCallsThatACaptureElsewhereForbids are refused, and break it: the fake is no kinder than a
// driver.
func TestCallsThatACaptureElsewhereForbids(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	c := primary(t, d, 0)
	end := m.CaptureElsewhere()
	if _, err := c.Alloc(16); !errors.Is(err, cuda.ErrCaptureUnsupported) {
		t.Errorf("allocation: %v", err)
	}
	wants(t, end(), cuda.ErrCaptureInvalidated)
}

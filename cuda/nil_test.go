package cuda_test

import (
	"runtime"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestNil: what is nil, or no address, is refused and named, and nothing panics.
func TestNil(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	m.Kernel("k", func(*cudatest.Call) {})
	c := primary(t, d, 0)
	s, e, memory := newStream(t, c), newEvent(t, c, cuda.EventOptions{Timing: true}), alloc(t, c, 64)
	module, err := c.LoadModule([]byte("code"))
	keep(t, module, err)
	function, err := module.Function("k")
	ok(t, err)
	launch, err := function.Prepare(cuda.LaunchConfig{})
	ok(t, err)
	graph, err := s.Capture(func() error { return launch.Start(s) })
	keep(t, graph, err)
	exec, err := graph.Instantiate()
	keep(t, exec, err)
	var noStream *cuda.Stream
	var noEvent *cuda.Event
	p, bytes := memory.Pointer(), make([]byte, 8)
	for what, call := range map[string]func() error{
		"Memset":               func() error { return noStream.Memset(p, 0, 8) },
		"Memset32":             func() error { return noStream.Memset32(p, 0, 8) },
		"Memset nowhere":       func() error { return s.Memset(0, 0, 8) },
		"Copy":                 func() error { return noStream.Copy(p, p, 8) },
		"Copy nowhere":         func() error { return s.Copy(0, p, 8) },
		"CopyPeer":             func() error { return noStream.CopyPeer(p, c, p, c, 8) },
		"CopyPeer to":          func() error { return s.CopyPeer(p, nil, p, c, 8) },
		"CopyPeer from":        func() error { return s.CopyPeer(p, c, p, nil, 8) },
		"CopyPeer nowhere":     func() error { return s.CopyPeer(0, c, 0, c, 8) },
		"Stream.Upload":        func() error { return noStream.Upload(p, bytes) },
		"Stream.Download":      func() error { return noStream.Download(bytes, p) },
		"Stream.Query":         func() error { _, err := noStream.Query(); return err },
		"Stream.Synchronize":   func() error { return noStream.Synchronize() },
		"Stream.Wait":          func() error { return noStream.Wait(t.Context()) },
		"Stream.Priority":      func() error { _, err := noStream.Priority(); return err },
		"CaptureStatus":        func() error { _, err := noStream.CaptureStatus(); return err },
		"BeginCapture":         func() error { return noStream.BeginCapture() },
		"EndCapture":           func() error { runtime.LockOSThread(); _, err := noStream.EndCapture(); return err },
		"Capture":              func() error { _, err := noStream.Capture(func() error { return nil }); return err },
		"Capture of nothing":   func() error { _, err := s.Capture(nil); return err },
		"WaitEvent":            func() error { return s.WaitEvent(nil) },
		"WaitEvent's stream":   func() error { return noStream.WaitEvent(e) },
		"Record":               func() error { return e.Record(nil) },
		"Record's event":       func() error { return noEvent.Record(s) },
		"Event.Query":          func() error { _, err := noEvent.Query(); return err },
		"Event.Synchronize":    func() error { return noEvent.Synchronize() },
		"Event.Wait":           func() error { return noEvent.Wait(t.Context()) },
		"Since":                func() error { _, err := e.Since(nil); return err },
		"Start":                func() error { return launch.Start(nil) },
		"GraphExec.Launch":     func() error { return exec.Launch(nil) },
		"GraphExec.Upload":     func() error { return exec.Upload(nil) },
		"EnablePeer":           func() error { return c.EnablePeer(nil) },
		"DisablePeer":          func() error { return c.DisablePeer(nil) },
		"CanAccessPeer":        func() error { _, err := c.Device().CanAccessPeer(nil); return err },
		"PeerLink":             func() error { _, err := c.Device().PeerLink(nil); return err },
		"Map":                  func() error { _, err := c.Map([]*cuda.Allocation{nil}); return err },
		"Map of nothing":       func() error { _, err := c.Map(nil); return err },
		"AllocVirtual":         func() error { _, err := c.AllocVirtual(64, cuda.AllocationOptions{}, nil); return err },
		"RegisterHost":         func() error { _, err := c.RegisterHost(nil, cuda.HostOptions{}); return err },
		"LoadModule":           func() error { _, err := c.LoadModule(nil); return err },
		"Prepare with nothing": func() error { _, err := function.Prepare(cuda.LaunchConfig{}, nil); return err },
	} {
		t.Run(what, func(t *testing.T) { wants(t, call(), cuda.ErrInvalidValue) })
	}
	if _, err := c.ImportFD(nil, 64); err == nil {
		t.Error("a descriptor that is none was imported")
	}
	ok(t, s.Synchronize())
}

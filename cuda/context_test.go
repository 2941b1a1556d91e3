package cuda_test

import (
	"sync"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestCurrent: goroutines on any thread may use any context; the right one is current in every
// call.
func TestCurrent(t *testing.T) {
	_, d := open(t, cudatest.Config{Devices: 4})
	var wg sync.WaitGroup
	for g := range 16 {
		c := primary(t, d, g%4)
		s := newStream(t, c)
		m := alloc(t, c, 1<<12)
		wg.Go(func() {
			for i := range 50 {
				if err := s.Memset(m.Pointer(), byte(i), m.Size()); err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
				if err := s.Synchronize(); err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestBind: what was current before is current again, however often unbind is called.
func TestBind(t *testing.T) {
	m, d := open(t, cudatest.Config{Devices: 3})
	outer, inner, other := primary(t, d, 0), primary(t, d, 1), primary(t, d, 2)
	current := func(want int) {
		t.Helper()
		if got := m.Current(); got != want {
			t.Errorf("device %d is current, want %d", got, want)
		}
	}
	unbindOuter, err := outer.Bind()
	ok(t, err)
	current(0)
	unbindInner, err := inner.Bind()
	ok(t, err)
	current(1)
	_, _, err = other.MemInfo()
	ok(t, err)
	current(2) // a call leaves its own
	unbindInner()
	current(0)
	ok(t, other.SetCurrent())
	unbindInner()
	current(2) // the second time does nothing
	unbindOuter()
}

func TestBindFails(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	for _, call := range []string{"cuCtxGetCurrent", "cuCtxSetCurrent"} {
		m.Fail(call, 0, cuda.ErrDeinitialized)
		_, err := c.Bind()
		wants(t, err, cuda.ErrDeinitialized)
	}
}

// TestClosedContext: a context that was closed is refused, also while others have the device's, in
// which its calls would work.
func TestClosedContext(t *testing.T) {
	_, d := open(t, cudatest.Config{Devices: 2})
	other, peer := primary(t, d, 0), primary(t, d, 1)
	c, err := device(t, d, 0).Primary()
	ok(t, err)
	memory := alloc(t, other, 64)
	allocation, err := other.NewAllocation(64, cuda.AllocationOptions{})
	keep(t, allocation, err)
	ok(t, c.Close())
	p, bytes := memory.Pointer(), make([]byte, 8)
	for what, call := range map[string]func() error{
		"Synchronize":      c.Synchronize,
		"SetCurrent":       c.SetCurrent,
		"Bind":             func() error { _, err := c.Bind(); return err },
		"MemInfo":          func() error { _, _, err := c.MemInfo(); return err },
		"PriorityRange":    func() error { _, _, err := c.PriorityRange(); return err },
		"NewStream":        func() error { _, err := c.NewStream(cuda.StreamOptions{}); return err },
		"NewEvent":         func() error { _, err := c.NewEvent(cuda.EventOptions{}); return err },
		"Alloc":            func() error { _, err := c.Alloc(64); return err },
		"AllocHost":        func() error { _, err := c.AllocHost(64, cuda.HostOptions{}); return err },
		"RegisterHost":     func() error { _, err := c.RegisterHost(bytes, cuda.HostOptions{}); return err },
		"Upload":           func() error { return c.Upload(p, bytes) },
		"Download":         func() error { return c.Download(bytes, p) },
		"LoadModule":       func() error { _, err := c.LoadModule([]byte("code")); return err },
		"Inspect":          func() error { _, err := c.Inspect(p); return err },
		"IPCHandle":        func() error { _, err := c.IPCHandle(p); return err },
		"OpenIPC":          func() error { _, err := c.OpenIPC(cuda.IPCHandle{}); return err },
		"EnablePeer":       func() error { return c.EnablePeer(peer) },
		"EnablePeer as it": func() error { return peer.EnablePeer(c) },
		"DisablePeer":      func() error { return c.DisablePeer(peer) },
		"NewAllocation":    func() error { _, err := c.NewAllocation(64, cuda.AllocationOptions{}); return err },
		"AllocVirtual":     func() error { _, err := c.AllocVirtual(64, cuda.AllocationOptions{}); return err },
		"ImportFD":         func() error { _, err := c.ImportFD(nil, 64); return err },
		"ImportFabric":     func() error { _, err := c.ImportFabric(cuda.FabricHandle{}, 64); return err },
		"RetainAllocation": func() error { _, err := c.RetainAllocation(p, 64); return err },
		"Map":              func() error { _, err := c.Map([]*cuda.Allocation{allocation}); return err },
	} {
		t.Run(what, func(t *testing.T) { wants(t, call(), cuda.ErrClosed) })
	}
}

// TestReleasedContext: a call in a context that nobody holds is refused by the driver, and
// reported.
func TestReleasedContext(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	c, err := device(t, d, 0).Primary()
	ok(t, err)
	s, err := c.NewStream(cuda.StreamOptions{})
	ok(t, err)
	ok(t, c.Close())
	wants(t, s.Synchronize(), cuda.ErrInvalidContext)
	if m.Check() == nil {
		t.Error("the machine did not mind")
	}
}

package cuda_test

import (
	"sync"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestCurrent: goroutines on any thread may use any context; the right one is current in every call.
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

// TestReleasedContext: a call in a context that nobody holds is refused and reported.
func TestReleasedContext(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	c, err := device(t, d, 0).Primary()
	ok(t, err)
	ok(t, c.Close())
	_, err = c.Alloc(16)
	wants(t, err, cuda.ErrInvalidContext)
	wants(t, c.SetCurrent(), cuda.ErrInvalidContext)
	if m.Check() == nil {
		t.Error("the machine did not mind")
	}
}

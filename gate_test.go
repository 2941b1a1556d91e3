package weft_test

import (
	"errors"
	"testing"

	"github.com/weftgo/weft"
)

// TestBusyCommClosesNoGate: a communicator that does not close, as a call is inside of one object, keeps no call of
// another object out, and an object that closes meanwhile stays closed.
func TestBusyCommClosesNoGate(t *testing.T) {
	c := join(t, 1)[0]
	gates := make([]*weft.Gate, 64)
	for i := range gates {
		gates[i] = c.Operations().Gate("group")
	}
	last := c.Operations().Gate("last")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(last.Enter("test"))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := c.Close(); !errors.Is(err, weft.ErrBusy) {
				done <- errors.Join(errors.New("it closed"), err)
				return
			}
		}
	}()
	for i, g := range gates {
		for range 2000 {
			must(g.Enter("test"))
			g.Leave()
		}
		if i%2 == 0 {
			for g.Close("test") != nil {
			}
			if err := g.Enter("test"); !errors.Is(err, weft.ErrClosed) {
				t.Fatalf("gate %d after its close: %v", i, err)
			}
		}
	}
	close(stop)
	must(<-done)
	for i, g := range gates {
		if g.Closed() != (i%2 == 0) {
			t.Errorf("gate %d: closed is %t", i, g.Closed())
		}
	}
	last.Leave()
}

package collective

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weftgo/weft"
)

// TestCloseWhileBusy: neither a group nor its communicator closes below a call; an abort ends the call.
func TestCloseWhileBusy(t *testing.T) {
	for name, call := range map[string]func(context.Context, *Group) error{
		"called": func(ctx context.Context, g *Group) error { return g.Barrier(ctx, nil) },
		"started": func(ctx context.Context, g *Group) error {
			w, err := g.Start(ctx, nil, Call{Collective: Barrier})
			if err != nil {
				return err
			}
			return errors.Join(w.Wait(ctx), w.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 2)
			groups := j.group(t, Options{})
			g, comm := groups[0], j.comms[0]
			done := make(chan error, 1)
			go func() { done <- call(testContext(t), g) }()
			for g.gate.Idle() {
				time.Sleep(time.Millisecond)
			}
			if err := comm.Close(); !errors.Is(err, weft.ErrBusy) {
				t.Errorf("close communicator: %v", err)
			}
			if name == "called" {
				if err := g.Close(); !errors.Is(err, weft.ErrBusy) {
					t.Errorf("close group: %v", err)
				}
			}
			comm.Abort()
			if err := <-done; !errors.Is(err, weft.ErrAborted) {
				t.Errorf("the call: %v", err)
			}
			if err := errors.Join(g.Close(), comm.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

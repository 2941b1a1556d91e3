package ep_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// TestCloseWhileBusy: neither a handle nor its communicator closes below a call of the handle. An abort ends the
// call, and then they do.
func TestCloseWhileBusy(t *testing.T) {
	ctx := testContext(t)
	comms := join(t, 2)
	spec := ep.Spec{Experts: 2, TopK: 1, Hidden: 4, MaxTokens: 1, Payload: ep.FP32}
	made := handles(t, comms, spec)
	topk, rows := weft.TensorOf([]int32{0}, 1, 1), weft.TensorOf(make([]float32, 4), 1, 4)
	weights := weft.TensorOf([]float32{1}, 1, 1)
	calls := map[string]func(h *ep.Handle) error{
		"prepare": func(h *ep.Handle) error {
			_, err := h.Prepare(ctx, nil, topk, weights)
			return err
		},
		"dispatch": func(h *ep.Handle) error {
			_, err := h.Dispatch(ctx, nil, ep.DispatchArgs{TopK: topk, Weights: weights, Rows: ep.Rows{Data: rows}})
			return err
		},
	}
	h, comm := made[0], comms[0]
	for name, call := range calls {
		done := make(chan error, 1)
		go func() { done <- call(h) }()
		for ep.Idle(h) {
			time.Sleep(time.Millisecond)
		}
		if err := h.Close(); !errors.Is(err, weft.ErrBusy) {
			t.Errorf("%s: close handle: %v", name, err)
		}
		if err := comm.Close(); !errors.Is(err, weft.ErrBusy) {
			t.Errorf("%s: close communicator: %v", name, err)
		}
		comm.Abort()
		if err := <-done; !errors.Is(err, weft.ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
		each(t, comms, func(c *weft.Comm) error { return c.SetMask(ctx) })
		each(t, comms, func(c *weft.Comm) error { return call(made[c.Rank()]) }) // the handle has gone on
	}
	for range 2 {
		if err := h.Close(); err != nil {
			t.Errorf("close handle: %v", err)
		}
	}
	if err := comm.Close(); err != nil {
		t.Errorf("close communicator: %v", err)
	}
}

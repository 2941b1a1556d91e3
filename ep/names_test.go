package ep_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestDisagreement: ranks that pass different Specs are told which members differ, and no others.
func TestDisagreement(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	err := ranktest.Each(group, func(c *weft.Comm) error {
		s := small(3)
		if c.Rank() == 2 {
			s.Hidden, s.Payload, s.Tuning.HostCopy = 32, ep.FP32, ep.CopyEach
		}
		_, err := ep.NewHandle(ctx, c, s)
		const want = "new handle: ranks disagree on Hidden: 32 on rank 2, 24 on ranks 0-1; " +
			"Payload: fp32 on rank 2, bf16 on ranks 0-1; "
		if !errors.Is(err, weft.ErrMismatch) || !strings.HasPrefix(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "Tuning.HostCopy: copy-each on rank 2, unset on ranks 0-1") {
			return fmt.Errorf("%w, want %s...", err, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNames: what is printed of the package's objects is short, and does not change them.
func TestNames(t *testing.T) {
	var log bytes.Buffer
	group := join(t, 1, weft.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	ctx := testContext(t)
	h := handles(t, group, ep.Spec{Experts: 2, TopK: 1, Hidden: 8, MaxTokens: 3, Payload: ep.FP32})[0]
	is := func(v any, want string) {
		t.Helper()
		if got := fmt.Sprintf("%v", v); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	is(h.Spec(), "Experts: 2, TopK: 1, Hidden: 8, MaxTokens: 3, Layout: expert-major, Payload: fp32, Output: fp32, "+
		"Alignment: 1, Live: 2")
	is(h, "handle of rank 0 of 1 on the host ("+h.Spec().String()+")")
	if got := log.String(); !strings.Contains(got, "msg=handle") || !strings.Contains(got, `op="new handle"`) ||
		!strings.Contains(got, "engine=host") || strings.Contains(got, "kernels") {
		t.Error(got)
	}

	routing, err := h.Prepare(ctx, nil, weft.TensorOf([]int32{0, 1}, 2, 1), weft.TensorOf([]float32{1, 1}, 2, 1))
	if err != nil {
		t.Fatal(err)
	}
	is(routing, "routing of 2 tokens")
	args := ep.DispatchArgs{Routing: routing, Rows: ep.Rows{Data: weft.TensorOf(make([]float32, 16), 2, 8)}}
	pending, err := h.SendDispatch(ctx, nil, args)
	if err != nil {
		t.Fatal(err)
	}
	is(pending, "dispatch, to be received")
	received, err := pending.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	is(pending, "dispatch, received")
	is(received, fmt.Sprintf("received fp32%v", received.Data.Shape))
	work, err := h.SendCombine(ctx, nil, ep.CombineArgs{
		Routing: routing, Rows: received.Data, Out: weft.TensorOf(make([]float32, 16), 2, 8),
	})
	if err != nil {
		t.Fatal(err)
	}
	is(work, "work, to be waited for")
	if err := work.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	is(work, "work, done")
	received.Release()
	is(received, "received, released")
	var none *ep.Routing
	is(none, "no routing")
}

package ep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/trace"
)

// TestTrace: every operation of a handle is recorded once, also in two calls, with its bytes and arrows to all ranks.
func TestTrace(t *testing.T) {
	const ranks, hidden, layers = 3, 16, 5
	dir := t.TempDir()
	err := ranktest.Run(ranks, func(int) []weft.Option { return []weft.Option{weft.WithTrace(dir)} },
		func(ctx context.Context, c *weft.Comm) error {
			h, err := ep.NewHandle(ctx, c, ep.Spec{Experts: ranks, TopK: 1, Hidden: hidden, MaxTokens: 1, Payload: ep.FP32})
			if err != nil {
				return err
			}
			x, out := make([]float32, hidden), make([]float32, hidden)
			for range layers {
				routing, err := h.Prepare(ctx, nil, weft.TensorOf([]int32{int32(c.Rank())}, 1, 1),
					weft.TensorOf([]float32{1}, 1, 1))
				if err != nil {
					return err
				}
				received, err := h.Dispatch(ctx, nil, ep.DispatchArgs{
					Routing: routing, Rows: ep.Rows{Data: weft.TensorOf(x, 1, hidden)},
				})
				if err != nil {
					return err
				}
				home, err := h.SendCombine(ctx, nil, ep.CombineArgs{
					Routing: routing, Rows: received.Data, Out: weft.TensorOf(out, 1, hidden),
				})
				if err == nil {
					err = home.Wait(ctx)
				}
				received.Release()
				routing.Release()
				if err != nil {
					return err
				}
			}
			return errors.Join(h.Close(), c.Close())
		})
	if err != nil {
		t.Fatal(err)
	}
	files, a := aligned(t, dir)
	if a.Backward != 0 || a.Arrows != 3*layers*ranks*(ranks-1) {
		t.Fatalf("%+v", a)
	}
	s := a.Summarise()
	if len(s.Operations) != 3 || len(s.Unfinished) != 0 || s.Ranks != ranks {
		t.Fatalf("%+v", s)
	}
	for i, name := range []string{"prepare", "dispatch", "combine"} {
		if o := s.Operations[i]; o.Name != name || o.Calls != layers {
			t.Errorf("%+v", o)
		}
	}
	for _, e := range files[0].Tracks[0].Events {
		if bytes := uint64(4 * hidden); e.Site == trace.Begin && e.Op == 1 && e.Bytes != bytes {
			t.Errorf("a dispatch of %d bytes, want %d", e.Bytes, bytes)
		}
	}
}

// TestTraceOfRefusal: an operation that all ranks refuse is recorded by all of them, also by the one that came last.
func TestTraceOfRefusal(t *testing.T) {
	const ranks = 3
	dir := t.TempDir()
	err := ranktest.Run(ranks, func(int) []weft.Option { return []weft.Option{weft.WithTrace(dir)} },
		func(ctx context.Context, c *weft.Comm) error {
			h, err := ep.NewHandle(ctx, c, ep.Spec{
				Experts: ranks, TopK: 1, Hidden: 4, MaxTokens: 1, Payload: ep.FP32, Live: 1,
			})
			if err != nil {
				return err
			}
			routing, err := h.Prepare(ctx, nil, weft.TensorOf([]int32{0}, 1, 1), weft.TensorOf([]float32{1}, 1, 1))
			if err != nil {
				return err
			}
			x := ep.DispatchArgs{Routing: routing, Rows: ep.Rows{Data: weft.TensorOf(make([]float32, 4), 1, 4)}}
			if _, err := h.Dispatch(ctx, nil, x); err != nil {
				return err
			}
			if _, err := h.Dispatch(ctx, nil, x); !errors.Is(err, weft.ErrUnsupported) { // nothing was released
				return fmt.Errorf("a second dispatch: %w", err)
			}
			return errors.Join(h.Close(), c.Close())
		})
	if err != nil {
		t.Fatal(err)
	}
	_, a := aligned(t, dir)
	s := a.Summarise()
	const want = "dispatch 3 of handle 1 host did not end on ranks 0, 1, 2: each heard from all others, " +
		"so it was refused or failed later"
	if len(s.Unfinished) != 1 || s.Unfinished[0].String() != want {
		t.Errorf("%+v", s.Unfinished)
	}
}

// aligned reads the traces of a folder, and aligns them.
func aligned(t *testing.T, dir string) ([]*trace.File, *trace.Trace) {
	t.Helper()
	files, err := trace.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := trace.Align(files)
	if err != nil {
		t.Fatal(err)
	}
	return files, a
}

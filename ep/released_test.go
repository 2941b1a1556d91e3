package ep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// lender is a rank that goes on to use received rows after their memory was lent to another batch.
// On the host every rank makes the calls that it makes, with rows of its own, and hears of the
// refusal; on a GPU a call that is refused has not been made.
type lender struct {
	*weft.Comm
	handle *ep.Handle
	other  *ep.Handle // of the same Spec
	stream *weft.Stream
	round  *eptest.Round
}

const lends = 1

// TestReleasedRows takes for the rows of an operation what was released, what another routing's
// batch has overwritten, what a later one of the same routing has, and what another handle has
// received.
func TestReleasedRows(t *testing.T) {
	const ranks = 2
	ctx := testContext(t)
	group := join(t, ranks)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			s := sized(way.spec, ranks)
			made, others := handles(t, group, s), handles(t, group, s)
			b := evenly(s, ranks, 1, 3).Batch()
			each(t, group, func(c *weft.Comm) error {
				round, err := b.Round(eptest.NewHost(), c, made[c.Rank()])
				if err != nil {
					return err
				}
				l := &lender{c, made[c.Rank()], others[c.Rank()], nil, round}
				return errors.Join(l.lend(ctx, func(call func() error) error { return call() }), round.Free())
			})
		})
	}
}

// TestReleasedRowsOnGPUs is TestReleasedRows on GPUs, where the calls are made in a capture, too.
func TestReleasedRowsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, 3).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					other, err := ep.NewHandle(ctx, r.Comm, s)
					if err != nil {
						return err
					}
					l := &lender{r.Comm, r.handle, other, r.stream, round}
					err = l.lend(ctx, func(call func() error) error {
						graph, err := r.capture(call)
						if err != nil {
							return err
						}
						return errors.Join(graph.Close(), call())
					})
					return errors.Join(err, r.rest(ctx), round.Free(), other.Close())
				})
			})
		}
	})
}

// lend makes the calls, each of them as captured makes it.
func (l *lender) lend(ctx context.Context, captured func(func() error) error) error {
	topk, weights, x, out := l.round.Operands()
	// until dispatches again and again, until rows come to the memory of those.
	until := func(old *ep.Received, dispatch func() (*ep.Received, error)) (*ep.Received, error) {
		for {
			got, err := dispatch()
			if err != nil || got.Data.Data == old.Data.Data {
				return got, err
			}
			got.Release()
		}
	}
	prepared := func() (*ep.Received, error) {
		return l.handle.Dispatch(ctx, l.stream, ep.DispatchArgs{TopK: topk, Weights: weights, Rows: x})
	}

	first, err := prepared()
	if err != nil {
		return err
	}
	first.Release()
	if err := captured(func() error { return l.refused(ctx, first.Routing, first.Data, "was released") }); err != nil {
		return err
	}
	second, err := until(first, prepared)
	if err != nil {
		return err
	}
	if err := captured(func() error {
		return l.refused(ctx, first.Routing, first.Data,
			"holds another routing's batch")
	}); err != nil {
		return err
	}
	second.Release()
	third, err := until(second, func() (*ep.Received,
		error,
	) {
		return l.handle.Dispatch(ctx, l.stream, ep.DispatchArgs{Routing: second.Routing, Rows: x})
	})
	if err != nil {
		return err
	}
	if err := captured(func() error {
		return l.refused(ctx, second.Routing, second.Data,
			"holds another batch of the routing")
	}); err != nil {
		return err
	}
	// What is there now may be combined, also by who does not say which batch it takes it for.
	anonymous := third.Data
	anonymous.Generation = 0
	for _, rows := range []weft.Tensor{third.Data, anonymous} {
		if err := l.handle.Combine(ctx, l.stream, ep.CombineArgs{
			Routing: third.Routing, Rows: rows, Out: out,
		}); err != nil {
			return err
		}
	}
	// Memory that another handle receives into is not the caller's.
	theirs, err := l.other.Dispatch(ctx, l.stream, ep.DispatchArgs{TopK: topk, Weights: weights, Rows: x})
	if err != nil {
		return err
	}
	if err := captured(func() error {
		return l.refused(ctx, third.Routing, theirs.Data,
			"holds another handle's batch")
	}); err != nil {
		return err
	}
	theirs.Release()
	if err := captured(func() error { return l.refused(ctx, third.Routing, theirs.Data, "was released") }); err != nil {
		return err
	}
	theirs.Routing.Release()
	third.Release()
	first.Routing.Release()
	second.Routing.Release()
	return l.Wait(ctx, l.stream)
}

// refused makes every call that takes rows, and has it refused in these words.
func (l *lender) refused(ctx context.Context, r *ep.Routing, rows weft.Tensor, words string) error {
	if l.stream != nil && l.Rank() != lends {
		return nil
	}
	s := l.handle.Spec()
	_, weights, _, out := l.round.Operands()
	if l.Rank() != lends {
		rows = weft.TensorAt(make([]byte, rows.Bytes()), rows.DType, rows.Shape...)
	}
	none := weft.Tensor{}
	calls := map[string]func() error{
		"combine": func() error {
			return l.handle.Combine(ctx, l.stream, ep.CombineArgs{
				Routing: r, Rows: rows, Out: out,
			})
		},
		"send combine": func() error {
			work, err := l.handle.SendCombine(ctx, l.stream, ep.CombineArgs{Routing: r, Rows: rows, Out: out})
			if err == nil {
				err = work.Wait(ctx)
			}
			return err
		},
		"dispatch backward": func() error {
			return l.handle.DispatchBackward(ctx, l.stream, ep.DispatchBackwardArgs{
				Routing: r, GradRows: rows, GradRowWeights: none, GradTokens: out, GradWeights: none,
			})
		},
		"combine backward to them": func() error {
			return l.handle.CombineBackward(ctx, l.stream, ep.CombineBackwardArgs{
				Routing: r, GradOut: out, Rows: none, GradRows: rows, GradWeights: none,
			})
		},
	}
	if s.Weighting == ep.Weighted {
		gradients := weft.TensorOf(make([]float32, weights.Elems()), weights.Shape...)
		fresh := weft.TensorAt(make([]byte, rows.Bytes()), rows.DType, rows.Shape...)
		calls["combine backward"] = func() error {
			return l.handle.CombineBackward(ctx, l.stream, ep.CombineBackwardArgs{
				Routing: r, GradOut: out, Rows: rows, GradRows: fresh, GradWeights: gradients,
			})
		}
	}
	if s.Weighting == ep.Weighted && s.Reduction == ep.Exact {
		calls["combine with weights"] = func() error {
			return l.handle.Combine(ctx, l.stream, ep.CombineArgs{Routing: r, Weights: weights, Rows: rows, Out: out})
		}
	}
	for _, name := range []string{
		"combine", "send combine", "combine with weights", "dispatch backward",
		"combine backward", "combine backward to them",
	} {
		call := calls[name]
		if call == nil {
			continue
		}
		err := call()
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("%s: %v, want one with %q", name, err, words)
		}
		if peer, ok := errors.AsType[*weft.PeerError](err); l.Rank() != lends && (!ok || peer.Rank != lends) {
			return fmt.Errorf("%s: %v does not name rank %d", name, err, lends)
		}
	}
	return nil
}

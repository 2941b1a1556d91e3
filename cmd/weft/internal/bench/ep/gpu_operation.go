package ep

import (
	"context"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/ep"
)

// dispatches is Dispatch of a new routing: from new top-k ids to received rows, in one kernel.
func (m *gpuRank) dispatches(ctx context.Context, bytes timing.Bytes) timing.Operation {
	args := ep.DispatchArgs{TopK: m.batch.topk, Weights: m.batch.weight, Rows: m.x}
	o := keeping(m, func() (*ep.Received, error) { return m.handle.Dispatch(ctx, m.Work, args) }, m.checkArrived,
		func(r *ep.Received) { r.Release(); r.Routing.Release() })
	o.Name, o.Bytes, o.Renew = "dispatch", bytes, func(bool) error { return m.writeTokens() }
	return o
}

// knownDispatches is Dispatch by an existing routing.
func (m *gpuRank) knownDispatches(ctx context.Context, bytes timing.Bytes) timing.Operation {
	args := ep.DispatchArgs{Routing: m.known, Rows: m.x}
	o := keeping(m, func() (*ep.Received, error) { return m.handle.Dispatch(ctx, m.Work, args) }, m.checkArrived,
		(*ep.Received).Release)
	o.Name, o.Bytes, o.Renew = "dispatch-known", bytes, func(bool) error { return m.writeTokens() }
	return o
}

// prepares is Prepare alone.
func (m *gpuRank) prepares(ctx context.Context) timing.Operation {
	o := keeping(m, func() (*ep.Routing, error) {
		return m.handle.Prepare(ctx, m.Work, m.batch.topk, m.batch.weight)
	}, m.checkCounts, (*ep.Routing).Release)
	o.Name = "prepare"
	return o
}

// keeping is an operation that makes what is released at once, or checked before.
func keeping[T any](m *gpuRank, make func() (T, error), check func(T) error, release func(T)) timing.Operation {
	var kept T
	sms, _ := m.handle.SMs()
	return timing.Operation{
		SMs: sms,
		Run: func(keep bool) error {
			made, err := make()
			switch {
			case err != nil:
				return err
			case keep:
				kept = made
			default:
				release(made)
			}
			return nil
		},
		Check: func() error {
			err := check(kept)
			release(kept)
			return m.verdict(err)
		},
	}
}

// combines is Combine: from the experts' rows to the tokens' sums.
func (m *gpuRank) combines(ctx context.Context, bytes timing.Bytes) timing.Operation {
	_, sms := m.handle.SMs()
	return timing.Operation{
		Name: "combine", Bytes: bytes, SMs: sms, Renew: func(bool) error { return m.writeExperts() },
		Check: func() error { return m.verdict(m.checkOut("combine", m.spec.Weighting == ep.Weighted)) },
		Run: func(bool) error {
			return m.handle.Combine(ctx, m.Work, ep.CombineArgs{Routing: m.known, Rows: m.y, Out: m.out})
		},
	}
}

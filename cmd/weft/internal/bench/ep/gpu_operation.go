package ep

import (
	"context"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/ep"
)

// dispatches is Dispatch of a new routing: from new top-k ids to received rows, in one kernel.
func (m *gpuRank) dispatches(ctx context.Context, bytes timing.Bytes) timing.Operation {
	var kept *ep.Received
	sms, _ := m.handle.SMs()
	return timing.Operation{
		Name: "dispatch", Bytes: bytes, SMs: sms, Renew: func(bool) error { return m.writeTokens() },
		Run: func(keep bool) error {
			r, err := m.handle.Dispatch(ctx, m.Work, ep.DispatchArgs{
				TopK: m.batch.topk, Weights: m.batch.weight, Rows: m.x,
			})
			switch {
			case err != nil:
				return err
			case keep:
				kept = r
			default:
				r.Release()
				r.Routing.Release()
			}
			return nil
		},
		Check: func() error {
			err := m.checkArrived(kept)
			kept.Release()
			kept.Routing.Release()
			return m.verdict(err)
		},
	}
}

// knownDispatches is Dispatch by an existing routing.
func (m *gpuRank) knownDispatches(ctx context.Context, bytes timing.Bytes) timing.Operation {
	var kept *ep.Received
	sms, _ := m.handle.SMs()
	return timing.Operation{
		Name: "dispatch-known", Bytes: bytes, SMs: sms, Renew: func(bool) error { return m.writeTokens() },
		Run: func(keep bool) error {
			r, err := m.handle.Dispatch(ctx, m.Work, ep.DispatchArgs{Routing: m.known, Rows: m.x})
			switch {
			case err != nil:
				return err
			case keep:
				kept = r
			default:
				r.Release()
			}
			return nil
		},
		Check: func() error {
			err := m.checkArrived(kept)
			kept.Release()
			return m.verdict(err)
		},
	}
}

// prepares is Prepare alone.
func (m *gpuRank) prepares(ctx context.Context) timing.Operation {
	var kept *ep.Routing
	sms, _ := m.handle.SMs()
	return timing.Operation{
		Name: "prepare", SMs: sms,
		Run: func(keep bool) error {
			r, err := m.handle.Prepare(ctx, m.Work, m.batch.topk, m.batch.weight)
			switch {
			case err != nil:
				return err
			case keep:
				kept = r
			default:
				r.Release()
			}
			return nil
		},
		Check: func() error {
			err := m.checkCounts(kept)
			kept.Release()
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

package bench

import (
	"context"

	"github.com/weftgo/weft/ep"
)

// operation is what is timed on GPUs.
type operation struct {
	name  string
	bytes moved
	sms   int // that its kernel runs on
	// renew makes other operands than before: what is checked then can only have come by what is
	// about to run.
	renew func() error
	// run enqueues it. What the last one gives is kept until check.
	run func(keep bool) error
	// check compares what came, when all that was enqueued has ended, and gives back what was kept.
	check func() error
}

// dispatches is PrepareDispatch: from new top-k ids to received rows, in one kernel.
func (m *gpuRank) dispatches(ctx context.Context, bytes moved) operation {
	var kept *ep.Received
	sms, _ := m.handle.SMs()
	return operation{
		name: "dispatch", bytes: bytes, sms: sms, renew: m.writeTokens,
		run: func(keep bool) error {
			r, err := m.handle.PrepareDispatch(ctx, m.work, m.batch.topk, m.batch.weight, m.x)
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
		check: func() error {
			err := m.checkArrived(kept)
			kept.Release()
			kept.Routing.Release()
			return err
		},
	}
}

// knownDispatches is Dispatch by a routing that is there.
func (m *gpuRank) knownDispatches(ctx context.Context, bytes moved) operation {
	var kept *ep.Received
	sms, _ := m.handle.SMs()
	return operation{
		name: "dispatch-known", bytes: bytes, sms: sms, renew: m.writeTokens,
		run: func(keep bool) error {
			r, err := m.handle.Dispatch(ctx, m.work, m.known, m.x)
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
		check: func() error {
			err := m.checkArrived(kept)
			kept.Release()
			return err
		},
	}
}

// prepares is Prepare alone.
func (m *gpuRank) prepares(ctx context.Context) operation {
	var kept *ep.Routing
	sms, _ := m.handle.SMs()
	return operation{
		name: "prepare", sms: sms, renew: func() error { return nil },
		run: func(keep bool) error {
			r, err := m.handle.Prepare(ctx, m.work, m.batch.topk, m.batch.weight)
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
		check: func() error {
			err := m.checkCounts(kept)
			kept.Release()
			return err
		},
	}
}

// combines is Combine: from the experts' rows to the tokens' sums.
func (m *gpuRank) combines(ctx context.Context, bytes moved) operation {
	_, sms := m.handle.SMs()
	return operation{
		name: "combine", bytes: bytes, sms: sms, renew: m.writeExperts,
		check: func() error { return m.checkOut("combine", m.spec.Weighting == ep.Weighted) },
		run:   func(bool) error { return m.handle.Combine(ctx, m.work, m.known, m.y, m.out) },
	}
}

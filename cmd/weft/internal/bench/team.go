package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
)

// A team is the goroutines of one measurement. If one of them fails, nobody waits for it.
type team struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	members int64
	arrived atomic.Int64
	round   atomic.Int64
	slots   []any // by member
}

func newTeam(ctx context.Context, members int) *team {
	t := &team{members: int64(members), slots: make([]any, members)}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	return t
}

// fail ends the team's waits. The first reason counts: a member that tells others on another way
// says so here first.
func (t *team) fail(member int, err error) { t.cancel(fmt.Errorf("rank %d: %w", member, err)) }

// end is why the team failed, if it did. Nobody may wait any more.
func (t *team) end() error {
	err := context.Cause(t.ctx)
	t.cancel(nil)
	return err
}

// meet returns when all members have come. The last to come does what is to be done before anyone
// goes on. It spins: what follows is timed.
func (t *team) meet(last func()) error {
	round := t.round.Load()
	if t.arrived.Add(1) == t.members {
		if last != nil {
			last()
		}
		t.arrived.Store(0)
		t.round.Add(1)
		return context.Cause(t.ctx)
	}
	for spins := 0; t.round.Load() == round; spins++ {
		if spins%64 == 0 {
			if err := context.Cause(t.ctx); err != nil {
				return err
			}
			runtime.Gosched()
		}
	}
	return nil
}

// gather gives every member what each of them brought.
func gather[T any](t *team, me int, mine T) ([]T, error) {
	t.slots[me] = mine
	if err := t.meet(nil); err != nil {
		return nil, err
	}
	all := make([]T, len(t.slots))
	for i, v := range t.slots {
		all[i] = v.(T)
	}
	return all, t.meet(nil) // before anyone brings the next
}

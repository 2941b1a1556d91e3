package timing

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// Team is the goroutines of one measurement, each on a thread of its own. If one of them fails,
// none waits for it.
type Team struct {
	cancel  context.CancelCauseFunc
	context context.Context
	members int64
	arrived atomic.Int64
	round   atomic.Int64
	slots   []any // by member
}

func newTeam(ctx context.Context, members int) *Team {
	t := &Team{members: int64(members), slots: make([]any, members)}
	t.context, t.cancel = context.WithCancelCause(ctx)
	return t
}

// RunTeam runs body as each member of a team, and returns the first reason why it failed. The
// context ends when one member fails.
func RunTeam(ctx context.Context, members int, body func(ctx context.Context, t *Team, me int) error) error {
	t := newTeam(ctx, members)
	var all sync.WaitGroup
	for me := range members {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := body(t.context, t, me); err != nil {
				t.Fail(me, err)
			}
		})
	}
	all.Wait()
	return t.end()
}

// Fail ends the team's waits. The first reason counts: a member that reports an error in another
// way ends the team here first.
func (t *Team) Fail(member int, err error) { t.cancel(fmt.Errorf("rank %d: %w", member, err)) }

// end is why the team failed, if it did. No member waits any more.
func (t *Team) end() error {
	err := context.Cause(t.context)
	t.cancel(nil)
	return err
}

// Meet returns when all members have come. The last to come calls last before any goes on. It
// spins, because the next step is timed.
func (t *Team) Meet(last func()) error {
	round := t.round.Load()
	if t.arrived.Add(1) == t.members {
		if last != nil {
			last()
		}
		t.arrived.Store(0)
		t.round.Add(1)
		return context.Cause(t.context)
	}
	for spins := 0; t.round.Load() == round; spins++ {
		if spins%64 == 0 {
			if err := context.Cause(t.context); err != nil {
				return err
			}
			runtime.Gosched()
		}
	}
	return nil
}

// Gather returns the contributions of all members to every member.
func Gather[T any](t *Team, me int, mine T) ([]T, error) {
	t.slots[me] = mine
	if err := t.Meet(nil); err != nil {
		return nil, err
	}
	all := make([]T, len(t.slots))
	for i, v := range t.slots {
		all[i] = v.(T)
	}
	return all, t.Meet(nil) // before any brings the next
}

// Summarize combines all members' times, and returns the times of each.
func (t *Team) Summarize(me int, mine []time.Duration) (measure.Summary, [][]time.Duration, error) {
	all, err := Gather(t, me, mine)
	if err != nil {
		return measure.Summary{}, nil, err
	}
	s, err := measure.Summarize(all)
	return s, all, err
}

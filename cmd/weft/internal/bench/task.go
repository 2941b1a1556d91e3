package bench

import (
	"errors"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
)

// Task is the work of ranks; one of its fields is set. Validate before use.
type Task struct {
	EP         *ep.Shape         `json:",omitempty"`
	Collective *collective.Sweep `json:",omitempty"`
	Join       *Join             `json:",omitempty"`
}

// time is the time that a task asks for.
func (t Task) time() time.Duration {
	switch {
	case t.EP != nil:
		return t.EP.Time
	case t.Collective != nil:
		return t.Collective.Time * time.Duration(len(t.Collective.Bytes))
	case t.Join != nil:
		return t.Join.Time
	}
	return 0
}

// Validate checks a task for so many ranks. Ranks take a task as it comes, so it must be asked
// before any is started.
func (t Task) Validate(ranks int) error {
	if err := timing.Within("--ranks", ranks, 1, weft.MaxRanks); err != nil {
		return err
	}
	switch {
	case t.EP != nil:
		return t.EP.Validate(ranks)
	case t.Collective != nil:
		return t.Collective.Validate(false)
	case t.Join != nil:
		return t.Join.Effort.Validate()
	}
	return errors.New("an empty task")
}

// message is a line from a rank to the command.
type message struct {
	Done, Total int            `json:",omitempty"` // progress, from rank 0
	Series      *timing.Series `json:",omitempty"` // a result; there may be more
}

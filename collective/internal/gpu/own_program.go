package gpu

import (
	"context"
	"fmt"

	"github.com/weftgo/weft/collective/spec"
)

// openProgram makes a user's algorithm ready that has no kernel: what runs it has kernels, or copies, of its own. They
// never run at the same time as the group's, so they share its room.
func (e *Engine) openProgram(ctx context.Context, a *spec.Algorithm) error {
	r, err := a.Program.Open(ctx, e.comm, nil, e.room)
	if err != nil {
		return fmt.Errorf("algorithm %s: %w", a.Name, err)
	}
	made := &algorithm{Algorithm: *a}
	e.algorithms = append(e.algorithms, made)
	if e.runners == nil {
		e.runners = map[*algorithm]spec.Runner{}
	}
	e.runners[made] = r
	return nil
}

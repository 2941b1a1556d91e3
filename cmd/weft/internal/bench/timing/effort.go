package timing

import (
	"fmt"
	"time"
)

// Bounds on the iterations of one operation. Their timings travel as one line, which
// package launch would cut at a megabyte.
const (
	fewestIterations = 20 // of those that are chosen by time
	MostIterations   = 100_000
)

// MostTime bounds how long one operation in one shape can be measured.
const MostTime = time.Hour

// Effort says how long to measure one operation in one shape, on the host.
type Effort struct {
	Iterations int           // 0: as many as fit in Time, but a few at least
	Time       time.Duration // of all iterations together, barriers included
	Warmup     int           // 0: every routing twice, or a few
}

// Validate checks an effort.
func (e Effort) Validate() error {
	if err := Within("--iters", e.Iterations, 0, MostIterations); err != nil {
		return err
	}
	if e.Time < 0 || e.Time > MostTime {
		return fmt.Errorf("--time %v: want 0 to %v", e.Time, MostTime)
	}
	return Within("--warmup", e.Warmup, 0, MostIterations)
}

// Within is an error unless v lies between two bounds, both included.
func Within(what string, v, low, high int) error {
	if v < low || v > high {
		return fmt.Errorf("%s %d: want %d to %d", what, v, low, high)
	}
	return nil
}

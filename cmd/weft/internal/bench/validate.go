package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
)

// Bounds on the iterations of one operation. Their timings travel as one line, which
// package launch would cut at a megabyte.
const (
	fewestIterations = 20 // of those that are chosen by time
	mostIterations   = 100_000
)

// mostTime bounds how long one operation in one shape can be measured.
const mostTime = time.Hour

// Validate says what is wrong with a task for so many ranks, if anything. Ranks take a
// task as it comes, so it must be asked before any is started.
func (t Task) Validate(ranks int) error {
	if err := within("ranks", ranks, 1, weft.MaxRanks); err != nil {
		return err
	}
	switch {
	case t.EP != nil:
		return t.EP.validate(ranks)
	case t.AllReduce != nil:
		return t.AllReduce.validate()
	case t.Join != nil:
		return within("iters", t.Join.Rounds, 1, mostIterations)
	}
	return errors.New("an empty task")
}

// Validate says what is wrong with an effort, if anything.
func (e Effort) Validate() error {
	if err := within("iters", e.Iterations, 0, mostIterations); err != nil {
		return err
	}
	if e.Time < 0 || e.Time > mostTime {
		return fmt.Errorf("time %v: want 0 to %v", e.Time, mostTime)
	}
	return within("warmup", e.Warmup, 0, mostIterations)
}

func (e *EP) validate(ranks int) error {
	if _, err := e.Spec(ranks); err != nil {
		return err
	}
	if e.Given {
		return errors.New("rows that the caller has in fp8 are measured on GPUs; leave Given out")
	}
	if _, err := routing.ParseKind(string(e.Routing)); err != nil {
		return err
	}
	if e.Tokens < 1 { // Spec knows the upper bound
		return fmt.Errorf("tokens %d: want at least 1", e.Tokens)
	}
	if err := within("batches", e.Batches, 1, mostIterations); err != nil {
		return err
	}
	return e.Effort.Validate()
}

func (a *AllReduce) validate() error {
	dtype, err := weft.ParseDType(a.DType)
	if err != nil {
		return err
	}
	if _, err := appendNumber(nil, dtype, 0); err != nil {
		return err
	}
	if _, err := weft.ParseOp(a.Op); err != nil {
		return err
	}
	if list := Algorithms(); a.Algorithm != "" && !slices.Contains(list, a.Algorithm) {
		return fmt.Errorf("algorithm %q: want one of %s", a.Algorithm, strings.Join(list, ", "))
	}
	for _, n := range a.Bytes {
		if n < 1 || n%int64(dtype.Size()) != 0 {
			return fmt.Errorf("a message of %d bytes is no whole number of %v elements", n, dtype)
		}
	}
	return a.Effort.Validate()
}

// within is an error unless v lies between two bounds, both included.
func within(what string, v, low, high int) error {
	if v < low || v > high {
		return fmt.Errorf("%s %d: want %d to %d", what, v, low, high)
	}
	return nil
}

package optimizer

import (
	"context"
	"math/rand/v2"

	"github.com/weftgo/weft/plan/spec"
)

// search looks for changes that a plan may have, until its time is over.
type search struct {
	ctx     context.Context
	proof   *proof
	options Options
	random  *rand.Rand
}

func (s *search) over() bool { return s.ctx.Err() != nil }

// largest looks for a set of n changes that passes: it tries all of them, and halves of what fails. So a few changes
// that may not be are found in a few steps, and no change that passes beside the others is left out.
func (s *search) largest(
	n int, with func(chosen []int) *spec.File, passes func(*spec.File) bool,
) (best *spec.File, taken int) {
	if n == 0 {
		return nil, 0
	}
	var chosen []int
	type part struct{ from, to int }
	for queue := []part{{0, n}}; len(queue) > 0 && !s.over(); {
		p := queue[0]
		queue = queue[1:]
		attempt := append([]int(nil), chosen...)
		for i := p.from; i < p.to; i++ {
			attempt = append(attempt, i)
		}
		if f := with(attempt); f.Check() == nil && passes(f) {
			best, chosen = f, attempt
		} else if middle := (p.from + p.to) / 2; middle > p.from {
			queue = append(queue, part{p.from, middle}, part{middle, p.to})
		}
	}
	return best, len(chosen)
}

// model is what a launch takes, by the model: an error if it does not end.
func (s *search) model(f *spec.File) (us float64, err error) {
	c, err := s.options.Model.Of(f, s.options.Bytes)
	return c.Time, err
}

// passes says whether a candidate may take the place of the plan.
func (s *search) passes(f *spec.File, instances int) bool {
	return !s.over() && s.proof.passes(f, instances) && s.proof.alike(f)
}

// faster says whether one plan is faster than another: by the model, or measured beside each other.
func (s *search) faster(a, b variant) (bool, error) {
	if s.options.Measure == nil {
		return a.us < b.us*gain, nil
	}
	took, err := s.options.Measure(s.ctx, []*spec.File{a.file, b.file}, s.options.Bytes)
	if err != nil {
		return false, err
	}
	return float64(took[0]) < float64(took[1])*noise, nil
}

package collective

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
)

// Planned is the sweep by the plan of a file, on as many ranks as the plan has. Sizes become such as it takes.
func (s Sweep) Planned(file string) (_ Sweep, ranks int, err error) {
	if s.Plan, err = filepath.Abs(file); err != nil {
		return s, 0, err
	}
	f, a, err := s.plan()
	if err != nil {
		return s, 0, err
	}
	if s.Kind == "" {
		for _, k := range Kinds {
			if k.Collective == a.Collective {
				s.Kind = k.Name
			}
		}
	}
	if k := Named(s.Kind); k.Collective != a.Collective {
		return s, 0, fmt.Errorf("%s: it is a plan of %v, not of %v", file, a.Collective, k.Collective)
	}
	s.Algorithm, s.InPlace = a.Name, f.InPlace
	if len(a.Ops) > 0 {
		s.Op = a.Ops[0].String()
	}
	s.Multiple = f.Alignment * max(f.Ranks[0].Input, 1)
	switch a.Collective {
	case collective.ReduceScatter:
		s.Multiple = f.Alignment * max(f.Ranks[0].Output, 1)
	case collective.AllToAll:
		s.Multiple /= len(f.Ranks)
	}
	return s, len(f.Ranks), nil
}

// plan reads the sweep's plan.
func (s *Sweep) plan() (*plan.File, collective.Algorithm, error) {
	text, err := os.ReadFile(s.Plan)
	if err != nil {
		return nil, collective.Algorithm{}, err
	}
	f, err := plan.Load(text)
	if err != nil {
		return nil, collective.Algorithm{}, fmt.Errorf("%s: %w", s.Plan, err)
	}
	a, err := executor.Algorithm(f)
	if err != nil {
		return nil, collective.Algorithm{}, fmt.Errorf("%s: %w", s.Plan, err)
	}
	return f, a, nil
}

// Options are those of a group that measures the sweep.
func (s *Sweep) Options() (o collective.Options, err error) {
	if s.Plan != "" {
		_, a, err := s.plan()
		if err != nil {
			return o, err
		}
		o.Algorithms = []collective.Algorithm{a}
	}
	if s.Algorithm != "" {
		o.Force = []string{s.Algorithm}
	}
	return o, nil
}

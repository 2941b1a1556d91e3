package collective

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
)

// DTypes lists the values of Sweep.DType.
func DTypes() []string {
	return slices.DeleteFunc(timing.Names(weft.ParseDType), func(s string) bool {
		d, _ := weft.ParseDType(s)
		_, err := appendNumber(nil, d, 0)
		return err != nil
	})
}

// Ops lists the values of Sweep.Op.
func Ops() []string { return timing.Names(weft.ParseOp) }

// Validate checks a sweep on GPUs or on the host.
func (s *Sweep) Validate(gpu bool) error {
	k := Named(s.Kind)
	if k == nil {
		return fmt.Errorf("there is no collective %q", s.Kind)
	}
	dtype, err := weft.ParseDType(s.DType)
	if err != nil {
		return err
	}
	if _, err := appendNumber(nil, dtype, 0); err != nil {
		return err
	}
	op, err := weft.ParseOp(s.Op)
	if err != nil {
		return err
	}
	if k.Collective.Reduces() {
		if err := spec.Reducible(k.Collective, op, dtype); err != nil {
			return err
		}
	}
	if s.InPlace && k.Collective == collective.PointToPoint {
		return errors.New("a rank cannot send what it receives into: not in place")
	}
	if s.Hidden > 0 {
		if err := s.validateNorm(gpu); err != nil {
			return err
		}
	}
	list, where := k.Algorithms(gpu), "the host"
	if s.Hidden > 0 {
		list = NormAlgorithms()
	}
	if gpu {
		where = "GPUs"
	}
	if !k.On(gpu) {
		return fmt.Errorf("%v: there is no algorithm on %s", k.Collective, where)
	}
	if s.Algorithm != "" && s.Plan == "" && !slices.Contains(list, s.Algorithm) {
		return fmt.Errorf("--algorithm %q: want one of %s", s.Algorithm, strings.Join(list, ", "))
	}
	if len(s.sizes()) == 0 {
		return errors.New("no sizes")
	}
	for _, n := range s.Bytes {
		if n < 1 {
			return fmt.Errorf("an operation of %d bytes", n)
		}
	}
	return s.Effort.Validate()
}

package ep

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/ep"
)

// Shape is one shape of dispatch and combine.
type Shape struct {
	Tokens, Hidden, TopK, Experts int // tokens per rank
	Capacity                      int `json:",omitempty"` // the most tokens per rank, if that is more than Tokens
	SMs                           int `json:",omitempty"` // on GPUs: for the kernels; 0: the library's choice

	Tuning ep.Tuning `json:",omitzero"` // on GPUs: of the kernels

	DType, Layout, Reduction, Weighting, Counts string // as package ep names them

	Scales string `json:",omitempty"` // order of the scales that arrive with FP8 rows; empty: row-major
	// on GPUs: FP8 rows and their scales are the caller's; else dispatch quantises them from bf16
	Given bool `json:",omitempty"`

	Routing routing.Kind
	Seed    uint64
	Phases  bool // send and receive apart
	Heap    bool // operands outside windows: staged
	Cached  bool // prepare once, outside the timing
	InPlace bool // experts overwrite the rows that they received
	Batches int  // different routings, taken in turn
	Fresh   bool // operands are written anew before every operation
	timing.Effort
}

// Spec translates a shape for package ep, or returns an error.
func (e Shape) Spec(ranks int) (ep.Spec, error) {
	s := ep.Spec{
		Experts: e.Experts, TopK: e.TopK, Hidden: e.Hidden, MaxTokens: max(e.Tokens, e.Capacity, 1),
		SMs: e.SMs, Tuning: e.Tuning,
	}
	var err error
	if s.Layout, err = ep.ParseLayout(e.Layout); err != nil {
		return s, err
	}
	if s.Reduction, err = ep.ParseReduction(e.Reduction); err != nil {
		return s, err
	}
	if s.Weighting, err = ep.ParseWeighting(e.Weighting); err != nil {
		return s, err
	}
	if s.Counts, err = ep.ParseCounts(e.Counts); err != nil {
		return s, err
	}
	if s.Payload, err = ep.ParsePayload(e.DType); err != nil {
		return s, err
	}
	if e.Scales != "" {
		if s.ScaleOrder, err = ep.ParseScaleOrder(e.Scales); err != nil {
			return s, err
		}
	}
	switch s.Payload {
	case ep.FP8, ep.FP8UE8M0:
		if s.Output = weft.BFloat16; !e.Given {
			s.Quantize = weft.BFloat16
		}
		if e.InPlace {
			return s, fmt.Errorf("experts cannot overwrite %v rows with theirs, which are %v; leave "+
				"--in-place out", s.Payload, s.Output)
		}
	case ep.Opaque:
		return s, fmt.Errorf("opaque rows are not measured: they have no type to combine")
	case ep.BF16:
		s.Output = weft.BFloat16
	case ep.FP16:
		s.Output = weft.Float16
	default:
		s.Output = weft.Float32
	}
	untuned := s // which Validate is not for
	untuned.Tuning = ep.Tuning{}
	return s, inFlags(untuned.Validate(ranks))
}

// fields are those of a Spec that flags set, and the flags.
var fields = strings.NewReplacer("Hidden is ", "--hidden is ", "TopK is ", "--topk is ", "Experts is ", "--experts is ",
	"MaxTokens is ", "--tokens is ")

// flagError says a Spec's error in the words of the command line.
type flagError struct{ error }

func (e flagError) Error() string { return fields.Replace(e.error.Error()) }

func (e flagError) Unwrap() error { return e.error }

func inFlags(err error) error {
	if err == nil {
		return nil
	}
	return flagError{err}
}

// Validate checks a shape for the host.
func (e *Shape) Validate(ranks int) error {
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
		return fmt.Errorf("--tokens %d: want at least 1", e.Tokens)
	}
	if err := timing.Within("--batches", e.Batches, 1, timing.MostIterations); err != nil {
		return err
	}
	return e.Effort.Validate()
}

package ep

import (
	"slices"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/ep"
)

// The fields of a Shape that hold a name. Each function lists what its field can hold, in
// the words of the package that parses it.

// Layouts lists what Shape.Layout can be.
func Layouts() []string { return timing.Names(ep.ParseLayout) }

// Reductions lists what Shape.Reduction can be.
func Reductions() []string { return timing.Names(ep.ParseReduction) }

// Weightings lists what Shape.Weighting can be.
func Weightings() []string { return timing.Names(ep.ParseWeighting) }

// CountModes lists what Shape.Counts can be.
func CountModes() []string { return timing.Names(ep.ParseCounts) }

// Payloads lists what Shape.DType can be.
func Payloads() []string {
	return slices.DeleteFunc(timing.Names(ep.ParsePayload), func(s string) bool { return s == ep.Opaque.String() })
}

// ScaleOrders lists what Shape.Scales can be.
func ScaleOrders() []string { return timing.Names(ep.ParseScaleOrder) }

package ep

import (
	"slices"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/ep"
)

// The fields of a Shape that hold a name. Each function lists the values of its field, in the words
// of the package that parses it.

// Layouts lists the values of Shape.Layout.
func Layouts() []string { return timing.Names(ep.ParseLayout) }

// Reductions lists the values of Shape.Reduction.
func Reductions() []string { return timing.Names(ep.ParseReduction) }

// Weightings lists the values of Shape.Weighting.
func Weightings() []string { return timing.Names(ep.ParseWeighting) }

// CountModes lists the values of Shape.Counts.
func CountModes() []string { return timing.Names(ep.ParseCounts) }

// Payloads lists the values of Shape.DType.
func Payloads() []string {
	return slices.DeleteFunc(timing.Names(ep.ParsePayload), func(s string) bool { return s == ep.Opaque.String() })
}

// ScaleOrders lists the values of Shape.Scales.
func ScaleOrders() []string { return timing.Names(ep.ParseScaleOrder) }

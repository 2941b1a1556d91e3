package bench

import (
	"fmt"
	"math"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
)

// The fields of tasks that hold a name. Each function lists what its field can hold, in
// the words of the package that parses it.

// Layouts lists what EP.Layout can be.
func Layouts() []string { return names(ep.ParseLayout) }

// Reductions lists what EP.Reduction can be.
func Reductions() []string { return names(ep.ParseReduction) }

// Weightings lists what EP.Weighting can be.
func Weightings() []string { return names(ep.ParseWeighting) }

// CountModes lists what EP.Counts can be.
func CountModes() []string { return names(ep.ParseCounts) }

// Payloads lists what EP.DType can be.
func Payloads() []string {
	return slices.DeleteFunc(names(ep.ParsePayload), func(s string) bool { return s == ep.Opaque.String() })
}

// ScaleOrders lists what EP.Scales can be.
func ScaleOrders() []string { return names(ep.ParseScaleOrder) }

// DTypes lists what AllReduce.DType can be.
func DTypes() []string {
	return slices.DeleteFunc(names(weft.ParseDType), func(s string) bool {
		d, _ := weft.ParseDType(s)
		_, err := appendNumber(nil, d, 0)
		return err != nil
	})
}

// Ops lists what AllReduce.Op can be.
func Ops() []string { return names(weft.ParseOp) }

// Algorithms lists what AllReduce.Algorithm can be, besides empty.
func Algorithms() []string {
	var list []string
	for _, a := range collective.Algorithms() {
		if a.Collective == collective.AllReduce {
			list = append(list, a.Name)
		}
	}
	return list
}

// names lists what parse accepts: the text of every value that it gives back.
func names[T interface {
	~uint8
	fmt.Stringer
}](parse func(string) (T, error)) []string {
	var list []string
	for i := range math.MaxUint8 + 1 {
		v := T(i)
		if got, err := parse(v.String()); err == nil && got == v {
			list = append(list, v.String())
		}
	}
	return list
}

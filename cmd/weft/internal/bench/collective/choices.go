package collective

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/collective"
)

// DTypes lists the values of AllReduce.DType.
func DTypes() []string {
	return slices.DeleteFunc(timing.Names(weft.ParseDType), func(s string) bool {
		d, _ := weft.ParseDType(s)
		_, err := appendNumber(nil, d, 0)
		return err != nil
	})
}

// Ops lists the values of AllReduce.Op.
func Ops() []string { return timing.Names(weft.ParseOp) }

// Algorithms lists the values of AllReduce.Algorithm, besides empty.
func Algorithms() []string {
	var list []string
	for _, a := range collective.Algorithms() {
		if a.Collective == collective.AllReduce {
			list = append(list, a.Name)
		}
	}
	return list
}

// Validate checks a sweep.
func (a *AllReduce) Validate() error {
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

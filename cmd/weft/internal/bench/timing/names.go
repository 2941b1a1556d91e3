package timing

import (
	"fmt"
	"math"
)

// Names lists the values that parse accepts, as text.
func Names[T interface {
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

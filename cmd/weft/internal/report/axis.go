package report

import (
	"math"
	"slices"
	"strconv"
)

// axis maps positive values to pixels on a logarithmic scale.
type axis struct {
	lo, hi     float64 // values at the ends, lo < hi
	from, to   float64 // pixels at the ends; to may be the smaller
	ticks      []float64
	tickLabels []string
}

// fit covers values with a little air; at least a factor of two, so that one value
// alone sits in the middle.
func fit(values []float64, from, to float64) axis {
	lo, hi := slices.Min(values), slices.Max(values)
	air := math.Pow(hi/lo, 0.06)
	if hi/lo < 2 {
		air = math.Sqrt(2 / (hi / lo))
	}
	return axis{lo: lo / air, hi: hi * air, from: from, to: to}
}

func (a axis) pixel(v float64) float64 {
	return a.from + (a.to-a.from)*math.Log(v/a.lo)/math.Log(a.hi/a.lo)
}

// room drops ticks that would be closer than gap pixels to the one before.
func (a *axis) room(values []float64, gap float64, label func(float64) string) {
	last := math.Inf(-1)
	for _, v := range values {
		at := math.Abs(a.pixel(v) - a.from)
		if v < a.lo || v > a.hi || at-last < gap {
			continue
		}
		last = at
		a.ticks = append(a.ticks, v)
		a.tickLabels = append(a.tickLabels, label(v))
	}
}

// atData puts ticks at the values that were measured.
func (a *axis) atData(values []float64, label func(float64) string) {
	v := slices.Clone(values)
	slices.Sort(v)
	a.room(slices.Compact(v), 36, label)
}

// atRound puts ticks at round values: 1, 2, 5, 10, ... over a short range, powers of
// ten over a long one.
func (a *axis) atRound(label func(float64) string) {
	steps := []float64{1, 2, 5}
	switch decades := math.Log10(a.hi / a.lo); {
	case decades > 4:
		steps = []float64{1}
	case decades < 0.7:
		steps = []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9}
	}
	var values []float64
	for e := math.Floor(math.Log10(a.lo)); e <= math.Ceil(math.Log10(a.hi)); e++ {
		for _, s := range steps {
			values = append(values, s*math.Pow(10, e))
		}
	}
	a.room(values, 22, label)
}

// short writes a value with at most three significant digits and no exponent.
func short(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return strconv.FormatFloat(r, 'f', -1, 64)
}

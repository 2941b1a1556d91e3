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
	longest := 0
	for _, x := range v {
		longest = max(longest, len(label(x)))
	}
	a.room(slices.Compact(v), float64(character*longest+8), label)
}

// atRound puts ticks at round values, as many of a decade as have room, or at some powers of ten.
func (a *axis) atRound(label func(float64) string) {
	const gap = 24
	decades := math.Log10(a.hi / a.lo)
	decade := math.Abs(a.to-a.from) / decades
	every := 1.0 // decade
	steps := []float64{1}
	switch {
	case decades < 0.7:
		steps = []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9}
	case decade*math.Log10(2) >= gap:
		steps = []float64{1, 2, 5}
	case decade*math.Log10(3) >= gap:
		steps = []float64{1, 3}
	default:
		every = math.Ceil(gap / decade)
	}
	var values []float64
	for e := math.Floor(math.Log10(a.lo)/every) * every; e <= math.Ceil(math.Log10(a.hi)); e += every {
		for _, s := range steps {
			values = append(values, s*math.Pow(10, e))
		}
	}
	a.room(values, gap, label)
}

// tick writes a value of an axis: 20k and 3M are 20,000 and 3,000,000.
func tick(v float64) string {
	switch {
	case v < 1e-3:
		return strconv.FormatFloat(v, 'e', -1, 64)
	case v >= 1e6:
		return short(v/1e6) + "M"
	case v >= 1e4:
		return short(v/1e3) + "k"
	}
	return short(v)
}

// short writes a value with at most three significant digits and no exponent.
func short(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return strconv.FormatFloat(r, 'f', -1, 64)
}

package report

import (
	"fmt"
	"slices"
)

// ends are the first and the last point of a series, in words: "4 us for 1 token and 900 us for 64 tokens".
func ends(s Series, unit string, say func(float64) string) string {
	first, last := s.Points[0], s.Points[len(s.Points)-1]
	text := fmt.Sprintf("%s %s for %s", short(first.Y), unit, say(first.X))
	if last != first {
		text += fmt.Sprintf(" and %s %s for %s", short(last.Y), unit, say(last.X))
	}
	return text
}

// of names a series in a sentence.
func of(s *Series) string {
	if s.Name == measured {
		return ""
	}
	return " (" + s.Name + ")"
}

// mostSaid is how many series a sentence goes through.
const mostSaid = 3

// saysTime says what a plot of times shows: how long the ends of its first series took, and how far the last of
// them was from its floor.
func saysTime(op string, q quantity, times, floors []Series) string {
	text := ""
	said := 0
	for i := range times {
		s := times[i]
		s.Points = positive(s.Points)
		if len(s.Points) == 0 || said == mostSaid {
			continue
		}
		if said++; text == "" {
			text = op + of(&s) + " takes " + ends(s, "us", q.say)
		} else {
			text += ";" + of(&s) + " " + ends(s, "us", q.say)
		}
		last := s.Points[len(s.Points)-1]
		if floor := at(floors, s.Name, last.X); floor > 0 {
			text += fmt.Sprintf(", a ratio of %s to the floor", short(floor/last.Y))
		}
	}
	if text == "" {
		return ""
	}
	return text + "."
}

// saysRate says what a plot of bandwidths shows: the most, and how that is to the ceiling, of memory or of links.
func saysRate(q quantity, rates, ceilings []Series, ofLinks bool) string {
	var best Point
	var series *Series
	above := false
	for i := range rates {
		for _, p := range positive(rates[i].Points) {
			if p.Y > best.Y {
				best, series = p, &rates[i]
			}
			if c := at(ceilings, rates[i].Name, p.X); c > 0 && p.Y > c {
				above = true
			}
		}
	}
	if series == nil {
		return ""
	}
	text := fmt.Sprintf("The most is %s GB/s, for %s%s.", short(best.Y), q.say(best.X), of(series))
	last := series.Points[len(series.Points)-1]
	ceiling := at(ceilings, series.Name, last.X)
	switch {
	case above && ofLinks:
		text += " Points above the dotted line are faster than kernels that only copy were on the links in this run."
	case above && last.X > best.X && last.Y < 0.8*best.Y:
		text += fmt.Sprintf(" Points above the dotted line are faster than cold memory: their operands are in caches, which "+
			"hold less and less of the larger ones; for %s it is %s GB/s.", q.say(last.X), short(last.Y))
	case above:
		text += " Points above the dotted line are faster than cold memory: their operands are in caches."
	case ceiling > 0:
		text += fmt.Sprintf(" For %s it is %s of the ceiling.", q.say(last.X), short(last.Y/ceiling))
	}
	return text
}

// at is the value of the limit of a series, or 0.
func at(limits []Series, name string, x float64) float64 {
	for i := range limits {
		if limits[i].Of != name {
			continue
		}
		for _, p := range limits[i].Points {
			if p.X == x {
				return p.Y
			}
		}
	}
	return 0
}

// positive are the points that are drawn.
func positive(points []Point) []Point {
	return slices.DeleteFunc(slices.Clone(points), func(p Point) bool { return p.X <= 0 || p.Y <= 0 })
}

package trace

import (
	"cmp"
	"math"
	"slices"
)

// Clock is what alignment found of a clock.
type Clock struct {
	Name string
	// Ahead is by how much its anchors were ahead of the reference clock's, in nanoseconds: the middle of the trace.
	Ahead int64
	// Within bounds the error of that, beside drift within a span: in the span where it is widest. 0: it is the reference,
	// or events share its clock; negative: nothing bounds it but the clocks of the hosts.
	Within int64
	// Of is the clock to which it is within that, if nothing bounds both to the reference. Empty: the reference.
	Of string
	// Drift is by how many nanoseconds a second it runs faster than the time of day.
	Drift float64

	host    int // the clock of its host
	anchors []Anchor
	bound   int64 // of the distance to the host's clock; 0: none
	knots   []knot
	fixed   int64 // the correction where there are no knots
	of      int   // the number of Of; negative: none
}

// knot is a correction at a time.
type knot struct {
	at, s int64
}

// nearAnchors are taken for one: the best of them.
const nearAnchors = 250e6

// settle chooses among a clock's anchors.
func (c *Clock) settle() {
	slices.SortStableFunc(c.anchors, func(a, b Anchor) int { return cmp.Compare(a.Own, b.Own) })
	kept := c.anchors[:0]
	for _, a := range c.anchors {
		if n := len(kept); n > 0 {
			last := &kept[n-1]
			own, unix := float64(a.Own-last.Own), float64(a.Unix-last.Unix)
			if own < nearAnchors {
				if a.Within < last.Within {
					*last = a
				}
				continue
			}
			if math.Abs(unix/own-1) > 1e-3 { // the time of day was set
				continue
			}
		}
		kept = append(kept, a)
	}
	c.anchors = kept
	if n := len(kept); n > 1 {
		c.Drift = (float64(kept[n-1].Own-kept[0].Own)/float64(kept[n-1].Unix-kept[0].Unix) - 1) * 1e9
	}
}

// unix is the time of day when the clock showed a time, by its anchors.
func (c *Clock) unix(own uint64) int64 {
	n := len(c.anchors)
	i, _ := slices.BinarySearchFunc(c.anchors, own, func(a Anchor, own uint64) int { return cmp.Compare(a.Own, own) })
	i = min(max(i-1, 0), max(n-2, 0))
	a := c.anchors[i]
	d := int64(own - a.Own)
	if n > 1 {
		b := c.anchors[i+1]
		length := int64(b.Own - a.Own)
		d += int64(float64(d) * (float64(b.Unix-a.Unix-length) / float64(length)))
	}
	return a.Unix + d
}

// correction is by how much the clock is ahead at a time.
func (c *Clock) correction(at int64) int64 {
	n := len(c.knots)
	if n == 0 {
		return c.fixed
	}
	i, _ := slices.BinarySearchFunc(c.knots, at, func(k knot, at int64) int { return cmp.Compare(k.at, at) })
	switch {
	case i == 0:
		return c.knots[0].s
	case i == n:
		return c.knots[n-1].s
	}
	a, b := c.knots[i-1], c.knots[i]
	return a.s + int64(float64(b.s-a.s)*(float64(at-a.at)/float64(b.at-a.at)))
}

const unbounded = math.MaxInt64 / 4

// bounds are the least times from clock to clock: s(b) - s(a) <= bounds[a*n+b].
type bounds []int64

func newBounds(n int) bounds {
	b := make(bounds, n*n)
	for i := range b {
		if i%(n+1) != 0 {
			b[i] = unbounded
		}
	}
	return b
}

// close makes them the tightest ones along any path. It fails if they contradict each other.
func (d bounds) close(n int) bool {
	for k := range n {
		for a := range n {
			ak := d[a*n+k]
			if ak == unbounded {
				continue
			}
			for b := range n {
				if kb := d[k*n+b]; kb != unbounded && ak+kb < d[a*n+b] {
					d[a*n+b] = ak + kb
				}
			}
		}
		for a := range n {
			if d[a*n+a] < 0 {
				return false
			}
		}
	}
	return true
}

// set says which clock is the first of those that bounds keep together with one, whether they are alone: no bound is
// between one of them and another clock, and whether any bound is between this clock and others.
func (d bounds) set(n, of int) (first int, alone, others bool) {
	first, alone = of, true
	for a := range n {
		in := d.mutual(n, a, of)
		if in {
			first = min(first, a)
		}
		for b := range n {
			if a == b || d[a*n+b] == unbounded {
				continue
			}
			others = others || a == of || b == of
			alone = alone && in == d.mutual(n, b, of)
		}
	}
	return first, alone, others
}

// mutual reports whether bounds keep two clocks together both ways.
func (d bounds) mutual(n, a, b int) bool { return d[a*n+b] != unbounded && d[b*n+a] != unbounded }

// place gives every clock a correction that keeps all bounds, which have been closed. Those that bounds keep together
// are in the middle of what they allow, about the first of them. Of what is bounded on one side only nothing moves
// unless it must, and the clock 0 never.
func (d bounds) place(n int) (s []int64) {
	s = make([]int64, n)
	set := make([]int, n) // by clock: the first of those that are kept together with it
	reach := make([]int, n)
	for b := range n {
		set[b] = b
		for a := range b {
			if d.mutual(n, a, b) {
				set[b] = a
				s[b] = (d[a*n+b] - d[b*n+a]) / 2
				break
			}
		}
		for a := range n {
			if d[b*n+a] != unbounded {
				reach[b]++
			}
		}
	}
	var before, after []int // sets, by whether they bound the clock 0
	for c := range n {
		switch {
		case set[c] != c || c == 0:
		case d[c*n] != unbounded:
			before = append(before, c)
		default:
			after = append(after, c)
		}
	}
	slices.SortFunc(before, func(a, b int) int { return reach[a] - reach[b] })
	slices.SortFunc(after, func(a, b int) int { return reach[b] - reach[a] })
	placed := map[int]bool{0: true}
	move := func(of int, up bool) {
		shift := int64(0)
		for a := range n {
			for b := range n {
				bound := d[a*n+b]
				switch {
				case bound == unbounded:
				case up && set[a] == of && placed[set[b]]: // s(a) is at least s(b) - bound
					shift = max(shift, s[b]-bound-s[a])
				case !up && set[b] == of && placed[set[a]]:
					shift = min(shift, s[a]+bound-s[b])
				}
			}
		}
		for c := range n {
			if set[c] == of {
				s[c] += shift
			}
		}
		placed[of] = true
	}
	for _, c := range before {
		move(c, true)
	}
	for _, c := range after {
		move(c, false)
	}
	return s
}

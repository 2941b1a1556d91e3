package trace

import (
	"errors"
	"fmt"
	"slices"
)

// Trace is the files of a job on one axis of time: nanoseconds since 1970 by the reference clock, which is that of the
// first file's host.
type Trace struct {
	Files []*File
	Lanes []*Lane
	// Clocks are all clocks of the trace; the first is the reference.
	Clocks []*Clock
	// Start and End are the times of the first and the last event.
	Start, End int64
	// Arrows is how many arrivals have a publication. Backward is how many of them came before it: by the anchors alone,
	// and as aligned; Worst is by how much at most, as aligned, in nanoseconds.
	Arrows           int
	BackwardByAnchor int
	Backward         int
	Worst            int64
}

const (
	widestSpan   = int64(1e9)
	narrowSpan   = int64(1e9) / 64
	mostWindows  = 1 << 14
	mostClocks   = 1 << 11
	longest      = int64(100 * 24 * 3600 * 1e9)
	anchorsSlack = 100 // nanoseconds: of interpolation between anchors
	rounding     = 4   // nanoseconds: of halves, and of interpolation between knots
)

// Align puts the events of files on one axis of time, as the package's documentation says. It changes the files'
// events: their times and their order.
func Align(files []*File) (*Trace, error) {
	if len(files) == 0 {
		return nil, errors.New("trace: no files")
	}
	type place struct {
		comm string
		rank int
	}
	of := map[place]*File{}
	for _, f := range files {
		p := place{f.Comm, f.Rank}
		if of[p] != nil {
			return nil, fmt.Errorf("trace: %s and %s are both of rank %d of a job: name each file once", of[p].Path, f.Path,
				f.Rank)
		}
		of[p] = f
	}
	t := &Trace{Files: files, Lanes: lanesOf(files)}
	if err := t.findClocks(); err != nil {
		return nil, err
	}
	if len(t.Clocks) > mostClocks {
		return nil, fmt.Errorf("trace: %d clocks: at most %d can be aligned; name the files of fewer hosts", len(t.Clocks),
			mostClocks)
	}
	t.byAnchors()
	if long := t.End - t.Start; long < 0 || long > longest {
		return nil, errors.New("trace: events are more than 100 days apart: name the files of one job")
	}
	if len(t.Clocks) > 1 && t.Start < t.End {
		t.byCausality()
	}
	t.count(&t.Backward, &t.Worst)
	return t, nil
}

// findClocks finds all clocks and their anchors.
func (t *Trace) findClocks() error {
	index := map[string]int{}
	number := func(name string, host int) int {
		i, ok := index[name]
		if !ok {
			i = len(t.Clocks)
			index[name] = i
			t.Clocks = append(t.Clocks, &Clock{Name: name, host: host, Within: -1})
			if host < 0 {
				t.Clocks[i].host = i
			}
		}
		return i
	}
	hosts := map[*File]int{}
	for _, f := range t.Files {
		host := number(ClockHost+" "+f.Host, -1)
		hosts[f] = host
		for _, a := range f.Anchors {
			c := host
			if a.Clock != ClockHost {
				c = number(a.Clock, host)
			}
			t.Clocks[c].anchors = append(t.Clocks[c].anchors, a)
		}
	}
	for _, l := range t.Lanes {
		for _, track := range l.Tracks {
			track.clock = hosts[track.File]
			if track.Clock != ClockHost {
				track.clock = number(track.Clock, hosts[track.File])
			}
		}
	}
	for _, c := range t.Clocks {
		c.settle()
		for _, a := range c.anchors {
			c.bound = max(c.bound, int64(min(a.Within, 1e12)))
		}
	}
	for _, l := range t.Lanes {
		for _, track := range l.Tracks {
			c := t.Clocks[track.clock]
			if len(c.anchors) > 0 || len(track.Events) == 0 {
				continue
			}
			if len(track.File.Anchors) == 0 {
				return fmt.Errorf("trace: %s: nothing says what time its clock %q shows", track.File.Path, track.Clock)
			}
			// Causality alone can tell. It begins where its rank does.
			c.anchors = []Anchor{{Own: track.Events[0].Time, Unix: track.File.Anchors[0].Unix}}
			c.bound = 0
		}
	}
	return nil
}

// byAnchors gives all events the time of day by their clocks' anchors.
func (t *Trace) byAnchors() {
	first := true
	for _, l := range t.Lanes {
		for _, track := range l.Tracks {
			c := t.Clocks[track.clock]
			for i := range track.Events {
				e := &track.Events[i]
				at := c.unix(e.Time)
				e.Time = uint64(at)
				if first || at < t.Start {
					t.Start = at
				}
				if first || at > t.End {
					t.End = at
				}
				first = false
			}
			sortEvents(track.Events)
		}
	}
}

// each goes through all arrows.
func (t *Trace) each(yield func(w arrow)) {
	var a arrows
	for _, l := range t.Lanes {
		l.operations(func(o *operation) { a.of(o, yield) })
	}
}

// count counts arrows that point backwards.
func (t *Trace) count(backward *int, worst *int64) {
	*backward, t.Arrows = 0, 0
	t.each(func(w arrow) {
		t.Arrows++
		if d := int64(w.sent.Time - w.seen.Time); d > 0 {
			*backward++
			*worst = max(*worst, d)
		}
	})
}

// shift corrects all events by their clocks' corrections.
func (t *Trace) shift(by func(c int, at int64) int64) {
	for _, l := range t.Lanes {
		for _, track := range l.Tracks {
			for i := range track.Events {
				e := &track.Events[i]
				e.Time -= uint64(by(track.clock, int64(e.Time)))
			}
		}
	}
}

// byCausality corrects the clocks by what arrows say.
func (t *Trace) byCausality() {
	var worst int64
	t.count(&t.BackwardByAnchor, &worst)
	coarse := t.coarse()
	t.shift(func(c int, _ int64) int64 { return coarse[c] })
	for c, k := range t.Clocks {
		k.Ahead = coarse[c]
		t.Start, t.End = min(t.Start, t.Start-k.Ahead), max(t.End, t.End-k.Ahead)
	}
	span := max(widestSpan, (t.End-t.Start)/mostWindows)
	for !t.refine(span) && span/2 >= narrowSpan && (t.End-t.Start)/(span/2) <= mostWindows {
		span /= 2
	}
	t.shift(func(c int, at int64) int64 { return t.Clocks[c].correction(at) })
	middle := t.Start + (t.End-t.Start)/2
	for _, c := range t.Clocks {
		c.Ahead += c.correction(middle)
		if c.of > 0 {
			c.Of = t.Clocks[c.of].Name
		}
	}
	t.Clocks[0].Within = 0
	t.Start, t.End = 1<<62, -1<<62
	for _, l := range t.Lanes {
		for _, track := range l.Tracks {
			for i := range track.Events {
				at := int64(track.Events[i].Time)
				t.Start, t.End = min(t.Start, at), max(t.End, at)
			}
		}
	}
}

// tie bounds the distances of clocks to those of their hosts, by their anchors.
func (t *Trace) tie(d bounds, coarse []int64) {
	n := len(t.Clocks)
	for c, k := range t.Clocks {
		if k.host == c || k.bound == 0 {
			continue
		}
		within := k.bound + t.Clocks[k.host].bound + anchorsSlack
		ahead := int64(0) // of the host's, by what has been corrected
		if coarse != nil {
			ahead = coarse[k.host] - coarse[c]
		}
		d[k.host*n+c] = min(d[k.host*n+c], within+ahead)
		d[c*n+k.host] = min(d[c*n+k.host], within-ahead)
	}
}

// coarse is a constant correction of each clock, along the tightest pairs: it brings clocks together that were set
// differently, so that times of one are times of another.
func (t *Trace) coarse() []int64 {
	n := len(t.Clocks)
	d := newBounds(n)
	t.each(func(w arrow) {
		if a, b := w.from.clock, w.to.clock; a != b {
			d[a*n+b] = min(d[a*n+b], int64(w.seen.Time-w.sent.Time)-rounding)
		}
	})
	whole := slices.Clone(d)
	t.tie(whole, nil)
	if whole.close(n) {
		return whole.place(n)
	}
	t.tie(d, nil)
	// They drift too much for one correction. Take the tightest pairs.
	s := make([]int64, n)
	in := make([]bool, n)
	in[0] = true
	for {
		from, to, best := -1, -1, int64(unbounded)
		for a := range n {
			for b := range n {
				if in[a] && !in[b] && d.mutual(n, a, b) && max(0, d[a*n+b]+d[b*n+a]) < best {
					from, to, best = a, b, max(0, d[a*n+b]+d[b*n+a])
				}
			}
		}
		if from < 0 {
			if to = slices.Index(in, false); to < 0 {
				return s
			}
			in[to] = true // nothing connects it with those before; others may be connected with it
			continue
		}
		in[to] = true
		s[to] = s[from] + (d[from*n+to]-d[to*n+from])/2
	}
}

// refine finds the corrections of clocks at times that are a span apart, and says whether the bounds of every two spans
// agree.
func (t *Trace) refine(span int64) bool {
	n := len(t.Clocks)
	windows := int((t.End-t.Start)/span) + 2
	least := make([]map[int]int64, windows) // by pair of clocks
	note := func(k, pair int, m int64) {
		if least[k] == nil {
			least[k] = map[int]int64{}
		}
		if old, ok := least[k][pair]; !ok || m < old {
			least[k][pair] = m
		}
	}
	t.each(func(w arrow) {
		a, b := w.from.clock, w.to.clock
		if a == b {
			return
		}
		m := int64(w.seen.Time-w.sent.Time) - rounding
		for _, at := range []int64{int64(w.sent.Time), int64(w.seen.Time)} {
			k := int(min(max(at-t.Start, 0)/span, int64(windows-2)))
			note(k, a*n+b, m) // the knots on both sides
			note(k+1, a*n+b, m)
		}
	})
	coarse := make([]int64, n)
	for c, k := range t.Clocks {
		coarse[c] = k.Ahead
		k.knots, k.Within, k.of = k.knots[:0], -1, -1
	}
	agree := true
	for k, pairs := range least {
		if pairs == nil {
			continue
		}
		d := newBounds(n)
		for pair, m := range pairs {
			d[pair] = min(d[pair], m)
		}
		tied := slices.Clone(d)
		t.tie(tied, coarse)
		if !tied.close(n) { // then anchors err
			if tied = d; !tied.close(n) {
				agree = false
				continue
			}
		}
		s := tied.place(n)
		stay := make([]int64, n) // by the first clock of a set: where nothing else bounds the set it stays where that was
		for c, clock := range t.Clocks {
			first, alone, others := tied.set(n, c)
			if first == c && alone && len(clock.knots) > 0 {
				stay[c] = clock.knots[len(clock.knots)-1].s
			}
			if c != 0 && !others {
				continue
			}
			clock.knots = append(clock.knots, knot{t.Start + int64(k)*span, s[c] + stay[first]})
			if c != first && (clock.of < 0 || first < clock.of) {
				clock.of, clock.Within = first, -1
			}
			if first == clock.of {
				clock.Within = max(clock.Within, (tied[first*n+c]+tied[c*n+first])/2)
			}
		}
	}
	return agree
}

package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Summary says what operations took and who was waited for. Times are nanoseconds; ranks are those of the job.
type Summary struct {
	Ranks      int         `json:"ranks"`            // of the job
	Traced     int         `json:"traced"`           // ranks that have a file
	Absent     []int       `json:"absent,omitempty"` // ranks that have none
	Files      int         `json:"files"`
	Comms      []string    `json:"comms"` // communicators that were joined: of several jobs, or of one that did so again
	Seconds    float64     `json:"seconds"`
	Events     int         `json:"events"`
	Lost       uint64      `json:"lost"`           // events
	Cut        []string    `json:"cut,omitempty"`  // files that end before their end
	Open       []int       `json:"open,omitempty"` // ranks with a file that they have not closed: see File.Ended
	Arrows     int         `json:"arrows"`
	Backward   int         `json:"backward"`
	Clocks     []ClockLine `json:"clocks"`
	Operations []Operation `json:"operations"`
	Unfinished []Hang      `json:"unfinished,omitempty"`
	// Overwritten are lanes whose operations came faster than they were read.
	Overwritten []Overwritten `json:"overwritten,omitempty"`
}

// Overwritten says how many operations of a lane are not in the trace, of how many, on all its ranks together.
type Overwritten struct {
	Lane string `json:"lane"`
	Comm string `json:"comm"`
	Lost uint64 `json:"lost"`
	Of   uint64 `json:"of"`
}

// ClockLine is a clock of a summary.
type ClockLine struct {
	Name   string  `json:"name"`
	Ahead  int64   `json:"ahead_ns"`
	Within int64   `json:"within_ns"`
	Of     string  `json:"of,omitempty"` // see Clock.Of
	Drift  float64 `json:"drift_ppb"`
}

// Operation is all calls of a name on a lane.
type Operation struct {
	Lane  string `json:"lane"`
	Comm  string `json:"comm"`
	Name  string `json:"name"`
	Calls int    `json:"calls"` // by one rank
	// P50, P99 and Longest are of the time from call to end, over all calls of all ranks.
	P50     int64 `json:"p50_ns"`
	P99     int64 `json:"p99_ns"`
	Longest int64 `json:"longest_ns"`
	// Ranks say of each rank how it was waited for.
	Ranks []Waited `json:"ranks"`
}

// Waited says how ranks waited for one.
type Waited struct {
	Rank int `json:"rank"`
	// Waited is the time that all other ranks spent in waits that what this rank published ended.
	Waited int64 `json:"waited_ns"`
	// Last is in how many calls it was the last to be seen by its peers; Beyond is by how much beyond the median rank, at
	// the median of those calls. The median rank of an even number is the earlier of the two in the middle.
	Last   int   `json:"last"`
	Beyond int64 `json:"beyond_p50_ns"`
	// Of those calls, in so many most of the delay came about before this rank called, between call and publication, and
	// between publication and arrival.
	AtCall   int `json:"at_call"`
	Inside   int `json:"inside"`
	OnTheWay int `json:"on_the_way"`
}

// Hang is an operation that ranks began and did not end.
type Hang struct {
	Lane  string `json:"lane"`
	Comm  string `json:"comm"`
	Name  string `json:"name"`
	Epoch uint64 `json:"epoch"`
	// Missing recorded nothing of it. Silent began it, and published nothing. Waiting have not ended it; For are the
	// ranks of which one of these saw nothing.
	Missing []int `json:"missing,omitempty"`
	Silent  []int `json:"silent,omitempty"`
	Waiting []int `json:"waiting,omitempty"`
	For     []int `json:"waited_for,omitempty"`
}

// gathered is what is known of an operation's calls as they are gone through.
type gathered struct {
	lane   *Lane
	name   string
	calls  map[int]int
	took   []int64
	waited map[int]int64
	last   map[int]*lateness
}

type lateness struct {
	beyond                   []int64
	atCall, inside, onTheWay int
}

// Summarise goes through the trace.
func (t *Trace) Summarise() *Summary {
	s := &Summary{Files: len(t.Files), Arrows: t.Arrows, Backward: t.Backward}
	traced := map[int]bool{}
	for _, f := range t.Files {
		s.Ranks = max(s.Ranks, f.Size)
		traced[f.Rank] = true
		if !slices.Contains(s.Comms, f.Comm) {
			s.Comms = append(s.Comms, f.Comm)
		}
		if !f.Ended && !slices.Contains(s.Open, f.Rank) {
			s.Open = append(s.Open, f.Rank)
		}
		if f.Cut != "" {
			s.Cut = append(s.Cut, fmt.Sprintf("%s: %s", f.Path, f.Cut))
		}
		for i := range f.Tracks {
			s.Events += len(f.Tracks[i].Events)
			s.Lost += f.Tracks[i].Lost
		}
	}
	s.Traced = len(traced)
	for rank := range s.Ranks {
		if !traced[rank] {
			s.Absent = append(s.Absent, rank)
		}
	}
	slices.Sort(s.Open)
	if s.Events > 0 {
		s.Seconds = float64(t.End-t.Start) / 1e9
	}
	for _, c := range t.Clocks {
		s.Clocks = append(s.Clocks, ClockLine{c.Name, c.Ahead, c.Within, c.Of, c.Drift})
	}
	for _, l := range t.Lanes {
		by := map[string]*gathered{}
		var order []string
		lost := Overwritten{Lane: l.Name, Comm: l.Comm}
		for _, track := range l.Tracks {
			lost.Lost += track.Overwritten
		}
		lost.Of = lost.Lost
		l.operations(func(o *operation) {
			lost.Of += uint64(len(o.parts))
			name := o.name()
			g := by[name]
			if g == nil {
				g = &gathered{lane: l, name: name, calls: map[int]int{}, waited: map[int]int64{}, last: map[int]*lateness{}}
				by[name] = g
				order = append(order, name)
			}
			g.add(o)
		})
		for _, name := range order {
			s.Operations = append(s.Operations, by[name].operation())
		}
		if lost.Lost > 0 {
			s.Overwritten = append(s.Overwritten, lost)
		}
		if h, ok := l.hang(); ok {
			s.Unfinished = append(s.Unfinished, h)
		}
	}
	return s
}

// jobRanks are the job's numbers of a lane's ranks, as far as they have tracks.
func (l *Lane) jobRanks() map[int]int {
	of := map[int]int{}
	for _, t := range l.Tracks {
		of[t.Rank] = t.File.Rank
	}
	return of
}

// passage is how a rank passed an operation.
type passage struct {
	rank               int
	begun, sent        int64
	hop                int64 // of what it published, to ranks that waited for it
	published, started bool
}

func (g *gathered) add(o *operation) {
	all := make([]passage, 0, len(o.parts))
	for _, p := range o.parts {
		var v passage
		v.rank = p.track.Rank
		ended, end := false, int64(0)
		before := map[uint16]int64{} // by block: the event before
		waited := map[int16]int64{}
		for i := range p.events {
			e := &p.events[i]
			at := int64(e.Time)
			switch e.Site {
			case Begin:
				if !v.started {
					v.started, v.begun = true, at
				}
			case Signalled, Pushed:
				if !v.published {
					v.published, v.sent = true, at
				}
			case End:
				ended, end = true, max(end, at)
			case Arrived:
				if last, ok := before[e.Block]; ok && e.Peer >= 0 && int(e.Peer) != p.track.Rank {
					waited[e.Peer] = max(waited[e.Peer], at-last)
				}
			}
			before[e.Block] = at
		}
		for peer, ns := range waited {
			g.waited[int(peer)] += ns
		}
		if ended && v.started {
			g.took = append(g.took, end-v.begun)
		}
		g.calls[v.rank]++
		all = append(all, v)
	}
	if len(all) < 2 || len(all) < g.lane.Size {
		return
	}
	for i := range all {
		if !all[i].started || !all[i].published {
			return
		}
	}
	g.late(o, all)
}

// late finds the rank whose publication came last, and why.
func (g *gathered) late(o *operation, all []passage) {
	at := map[int]*passage{}
	for i := range all {
		at[all[i].rank] = &all[i]
	}
	// How long a publication was on its way shows where a rank was already waiting for it.
	for _, p := range o.parts {
		before := map[uint16]int64{}
		for i := range p.events {
			e := &p.events[i]
			if e.Site == Arrived && e.Step == 0 && int(e.Peer) != p.track.Rank {
				if from, last := at[int(e.Peer)], before[e.Block]; from != nil && last > 0 && last <= from.sent {
					from.hop = max(from.hop, int64(e.Time)-from.sent)
				}
			}
			before[e.Block] = int64(e.Time)
		}
	}
	// Of an even number the lower middle, so that the last of two is compared with the other, and not with itself.
	middle := func(of func(p *passage) int64) int64 {
		values := make([]int64, len(all))
		for i := range all {
			values[i] = of(&all[i])
		}
		slices.Sort(values)
		return values[(len(values)-1)/2]
	}
	come := func(p *passage) int64 { return p.sent + p.hop }
	inside := func(p *passage) int64 { return p.sent - p.begun }
	last := &all[0]
	for i := range all {
		if come(&all[i]) > come(last) {
			last = &all[i]
		}
	}
	beyond := come(last) - middle(come)
	atCall := last.begun - middle(func(p *passage) int64 { return p.begun })
	within := inside(last) - middle(inside)
	onTheWay := last.hop - middle(func(p *passage) int64 { return p.hop })
	l := g.last[last.rank]
	if l == nil {
		l = new(lateness)
		g.last[last.rank] = l
	}
	l.beyond = append(l.beyond, beyond)
	switch max(atCall, within, onTheWay) {
	case atCall:
		l.atCall++
	case within:
		l.inside++
	default:
		l.onTheWay++
	}
}

func (g *gathered) operation() Operation {
	o := Operation{Lane: g.lane.Name, Comm: g.lane.Comm, Name: g.name}
	o.P50, o.P99, o.Longest = quantile(g.took, 0.5), quantile(g.took, 0.99), quantile(g.took, 1)
	job := g.lane.jobRanks()
	for rank := range g.lane.Size {
		o.Calls = max(o.Calls, g.calls[rank])
		w := Waited{Rank: rank, Waited: g.waited[rank]}
		if r, ok := job[rank]; ok {
			w.Rank = r
		}
		if l := g.last[rank]; l != nil {
			w.Last, w.Beyond = len(l.beyond), quantile(l.beyond, 0.5)
			w.AtCall, w.Inside, w.OnTheWay = l.atCall, l.inside, l.onTheWay
		}
		o.Ranks = append(o.Ranks, w)
	}
	return o
}

// quantile sorts the values.
func quantile(values []int64, q float64) int64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// hang says who has not ended a lane's last operation, if anybody has not.
func (l *Lane) hang() (h Hang, any bool) {
	h = Hang{Lane: l.Name, Comm: l.Comm}
	var last operation
	l.operations(func(o *operation) {
		last = *o
		last.parts = slices.Clone(o.parts)
	})
	job := l.jobRanks()
	number := func(rank int) int {
		if r, ok := job[rank]; ok {
			return r
		}
		return rank
	}
	there, published := map[int]bool{}, map[int]bool{}
	for _, p := range last.parts {
		there[p.track.Rank] = true
		for i := range p.events {
			if s := p.events[i].Site; s == Signalled || s == Pushed {
				published[p.track.Rank] = true
			}
		}
	}
	waitedFor := map[int]bool{}
	for _, p := range last.parts {
		ended, seen := false, map[int]bool{p.track.Rank: true}
		for i := range p.events {
			ended = ended || p.events[i].Site == End
			if p.events[i].Site == Arrived {
				seen[int(p.events[i].Peer)] = true
			}
		}
		if ended {
			continue
		}
		h.Waiting = append(h.Waiting, number(p.track.Rank))
		for rank := range l.Size {
			if !seen[rank] {
				waitedFor[number(rank)] = true
			}
		}
	}
	if len(h.Waiting) == 0 {
		return h, false
	}
	h.Name, h.Epoch = last.name(), last.epoch
	for rank := range l.Size {
		switch {
		case !there[rank]:
			h.Missing = append(h.Missing, number(rank))
		case !published[rank]:
			h.Silent = append(h.Silent, number(rank))
		}
		if waitedFor[number(rank)] {
			h.For = append(h.For, number(rank))
		}
	}
	slices.Sort(h.Waiting)
	return h, true
}

// String says it in a sentence.
func (h Hang) String() string {
	text := fmt.Sprintf("%s %s of %s did not end on %s", h.Name, ordinal(h.Epoch), h.Lane, ranks(h.Waiting))
	switch {
	case len(h.Missing) > 0:
		text += fmt.Sprintf(": %s recorded nothing of it", ranks(h.Missing))
	case len(h.Silent) > 0:
		text += fmt.Sprintf(": %s began it and published nothing", ranks(h.Silent))
	case len(h.For) > 0:
		text += fmt.Sprintf(": not all of it came from %s", ranks(h.For))
	case len(h.Waiting) > 1:
		text += ": each heard from all others, so it was refused or failed later"
	}
	return text
}

// ordinal is an operation's number in words.
func ordinal(epoch uint64) string {
	if generation := epoch >> 40; generation > 0 {
		return fmt.Sprintf("%d in generation %d", epoch&(1<<40-1), generation)
	}
	return fmt.Sprint(epoch)
}

func ranks(list []int) string {
	words := make([]string, len(list))
	for i, r := range list {
		words[i] = fmt.Sprint(r)
	}
	if len(words) == 1 {
		return "rank " + words[0]
	}
	return "ranks " + strings.Join(words, ", ")
}

func duration(ns int64) string {
	switch d := time.Duration(ns); {
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%.2fus", float64(ns)/1e3)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fus", float64(ns)/1e3)
	default:
		return d.Round(100 * time.Microsecond).String()
	}
}

// lane is the name of a communicator's lane: with the communicator's where another one has such a lane, too.
func (s *Summary) lane(name, comm string) string {
	for i := range s.Operations {
		if o := &s.Operations[i]; o.Lane == name && o.Comm != comm {
			return name + " of " + comm
		}
	}
	return name
}

// Text writes the summary for people.
func (s *Summary) Text(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d of %d ranks, %.3f s, %d events, %d lost; %d arrows, %d of them point backwards\n",
		s.Traced, s.Ranks, s.Seconds, s.Events, s.Lost, s.Arrows, s.Backward)
	if s.Lost > 0 {
		fmt.Fprintf(w, "lost: %d events, which the disk did not take in time: record fewer steps\n", s.Lost)
	}
	for _, o := range s.Overwritten {
		fmt.Fprintf(w, "lost: %d of %d operations of %s came faster than they were read: replay smaller graphs, "+
			"50 ms apart\n", o.Lost, o.Of, s.lane(o.Lane, o.Comm))
	}
	if n := len(s.Comms); n > 1 {
		fmt.Fprintf(w, "files of %d jobs, or of one that joined %d times: name those of one to see it alone\n", n, n)
	}
	if n := len(s.Absent); n > 0 {
		const most = 16
		more := ""
		if n > most {
			more = fmt.Sprintf(" and %d more", n-most)
		}
		some := s.Absent[:min(n, most)]
		fmt.Fprintf(w, "missing: the files of %s%s: name the directories of all hosts\n", ranks(some), more)
	}
	for _, cut := range s.Cut {
		fmt.Fprintf(w, "ends early: %s\n", cut)
	}
	if len(s.Open) > 0 {
		fmt.Fprintf(w, "not closed: the files of %s (killed, ended without Close, or still running): "+
			"last events may be missing\n", ranks(s.Open))
	}
	for _, h := range s.Unfinished {
		h.Lane = s.lane(h.Lane, h.Comm)
		fmt.Fprintf(w, "unfinished: %s\n", h)
	}
	if len(s.Clocks) > 1 {
		fmt.Fprint(w, "\nclock\tahead\twithin\tdrift\n")
		for _, c := range s.Clocks {
			within := "unknown"
			if c.Within >= 0 {
				within = duration(c.Within)
				if c.Of != "" {
					within += " of " + c.Of
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%.0f ppb\n", c.Name, duration(c.Ahead), within, c.Drift)
		}
	}
	if len(s.Operations) == 0 {
		fmt.Fprint(w, "\nno operations: the ranks joined, and called none that is recorded\n")
		return w.Flush()
	}
	fmt.Fprint(w, "\noperation\tlane\tcalls\tp50\tp99\tlongest\n")
	for _, o := range s.Operations {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", o.Name, s.lane(o.Lane, o.Comm), o.Calls, duration(o.P50), duration(o.P99),
			duration(o.Longest))
	}
	fmt.Fprint(w, "\nwaited for\tin\trank\ttime\tlast in\tby p50\tat the call\tinside\ton the way\n")
	for _, o := range s.Operations {
		list := slices.Clone(o.Ranks)
		slices.SortStableFunc(list, func(a, b Waited) int {
			return cmp.Or(cmp.Compare(b.Last, a.Last), cmp.Compare(b.Waited, a.Waited))
		})
		for _, r := range list[:min(len(list), 8)] {
			if r.Waited == 0 && r.Last == 0 {
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%d\t%d\t%d\n", o.Name, s.lane(o.Lane, o.Comm), r.Rank,
				duration(r.Waited), r.Last, duration(r.Beyond), r.AtCall, r.Inside, r.OnTheWay)
		}
	}
	return w.Flush()
}

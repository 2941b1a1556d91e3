package synthesis

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/spec"
)

// Spec is what a plan is to do, and where.
type Spec struct {
	// Collective is that of plan/spec: an all-gather, reduce-scatter, all-reduce, all-to-all or broadcast.
	Collective string
	Topology   *cost.Topology
	// Bytes is the size of message that the plan is made for: of the output of an all-gather, else of the input. It takes
	// other sizes, too.
	Bytes int
	Root  int // of a broadcast
	// RankOrder has sums be made in the order of ranks, so that results have the bits of the library's algorithms.
	RankOrder bool
	Name      string // of the plan; "" makes one
	Seed      uint64
	// Time is how long the search may take. The default is a minute. What was found by then is given; the verifier's
	// time comes on top.
	Time time.Duration
}

// defaultTime is that of a search.
const defaultTime = time.Minute

// Report is what is known of a plan.
type Report struct {
	Bytes   int // of the message for which Cost and Bound are: Spec.Bytes, or the next size that the plan takes
	Cost    cost.Cost
	Bound   cost.Bound
	Verdict *plan.Verdict
	Form    string // how it works, in words
	Tried   int    // plans that were scheduled
	Cut     bool   // the search ended with its time, and more of it may find better
}

// MaxRanks is for how many ranks plans are made.
const MaxRanks = 16

// Collectives are the names of those for which plans are made.
var Collectives = []string{spec.AllGather, spec.AllReduce, spec.AllToAll, spec.Broadcast, spec.ReduceScatter}

// check refuses what no plan can be made for.
func (s *Spec) check() error {
	switch {
	case !slices.Contains(Collectives, s.Collective):
		return fmt.Errorf("synthesis: no plan is made for %q; want one of %v", s.Collective, Collectives)
	case s.Topology == nil:
		return fmt.Errorf("synthesis: no topology")
	case s.Bytes < 1:
		return fmt.Errorf("synthesis: a message of %d bytes; want at least 1", s.Bytes)
	case s.Time < 0:
		return fmt.Errorf("synthesis: a search of %v; want more than 0", s.Time)
	case s.Topology.Ranks > MaxRanks:
		return fmt.Errorf("synthesis: %d ranks; plans are made for up to %d: leave some out of the topology",
			s.Topology.Ranks, MaxRanks)
	case s.Collective == spec.Broadcast && (s.Root < 0 || s.Root >= s.Topology.Ranks):
		return fmt.Errorf("synthesis: root %d; ranks are 0 to %d", s.Root, s.Topology.Ranks-1)
	}
	if err := s.Topology.Check(); err != nil {
		return err
	}
	return s.Topology.Connected()
}

// Synthesize makes a plan. It is the same whenever the spec is, unless the search ended with its time. The context
// ends it without a plan.
func Synthesize(ctx context.Context, s Spec) (*plan.File, Report, error) {
	if err := s.check(); err != nil {
		return nil, Report{}, err
	}
	bound, err := cost.BoundOf(s.Collective, s.Topology, s.Bytes, s.Root)
	if err != nil {
		return nil, Report{}, err
	}
	x := &search{Spec: s, ctx: ctx, graph: newGraph(s.Topology), bound: bound, begun: time.Now()}
	x.Time = cmp.Or(s.Time, defaultTime)
	if err := x.candidates(); err != nil {
		return nil, Report{}, err
	}
	file, report, err := x.choose()
	if err != nil {
		return nil, Report{}, err
	}
	report.Tried, report.Cut = len(x.found), x.cut
	report.Bound, err = cost.BoundOf(s.Collective, s.Topology, report.Bytes, s.Root)
	return file, report, err
}

// search is a synthesis under way.
type search struct {
	Spec
	ctx   context.Context
	graph *graph
	bound cost.Bound
	found []candidate
	least float64 // of those that are no guesses
	begun time.Time
	cut   bool // time was over before the search was
}

// over says whether a share of the search's time is over.
func (x *search) over(share float64) bool {
	over := time.Since(x.begun).Seconds() >= share*x.Time.Seconds()
	x.cut = x.cut || over
	return over
}

// scheduling is the share of the time in which plans are scheduled. In the rest the best are made.
const scheduling = 0.6

// candidate is a plan that was scheduled, but not made.
type candidate struct {
	problem
	packets bool
	windows int
	route   *route
	whole   float64 // microseconds that it takes without windows
	guess   float64 // and with them, if they never wait for each other
}

// near is how close to the bound a plan must be for the search to end, and by how much a plan must be better than one
// with fewer sends.
const near = 1.005

// most sends bounds a plan.
const most = 8000

// align is what chunks are multiples of.
const align = spec.DefaultAlignment

// counts are numbers of chunks to try. If the message can be divided into some of them, then only those.
func (x *search) counts(f form) (all []int) {
	n := x.graph.ranks
	for _, f := range []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256} {
		switch {
		case x.Collective == spec.Broadcast:
			all = append(all, f, f*max(n-1, 1))
		case f <= 64:
			all = append(all, f*n)
		}
	}
	all = append(all, n*(n-1), 2*n*(n-1))
	if x.Collective == spec.AllReduce && f != direct {
		all = append(all, 1, 2, 4, 8, 16, 32, 64, 128, 256) // chunks choose their roots
	}
	slices.Sort(all)
	all = slices.Compact(slices.DeleteFunc(all, func(k int) bool {
		return k < 1 || k > n && x.Bytes < k*align
	}))
	if fits := slices.DeleteFunc(slices.Clone(all), func(k int) bool { return x.Bytes%(k*align) != 0 }); len(fits) > 0 {
		return fits
	}
	return all
}

// idle is how many numbers of chunks are tried in a row that bring nothing.
const idle = 3

// candidates schedules plans of all forms, with chunks of several sizes.
func (x *search) candidates() error {
	x.least = math.Inf(1)
	for _, packets := range []bool{!x.early(), x.early()} {
		for _, form := range forms(x.Collective, x.RankOrder) {
			limit, err := x.limit(form, packets)
			if err != nil {
				return err
			}
			for _, slope := range []float64{1, 0.05, 0.003} {
				best, tried := math.Inf(1), 0
				for _, k := range x.counts(form) {
					q := problem{graph: x.graph, collective: x.Collective, root: x.Root, chunks: k, form: form}
					if q.sendsOf() > most || limit > x.least {
						continue
					}
					if err := x.ctx.Err(); err != nil {
						return context.Cause(x.ctx)
					}
					if len(x.found) > 0 && x.over(scheduling) {
						return nil
					}
					guess := x.try(q, packets, slope)
					if x.least <= x.bound.Time()*near {
						return nil
					}
					if tried++; guess < best/near {
						best, tried = guess, 0
					}
					if tried >= idle {
						break
					}
				}
			}
		}
	}
	return nil
}

// early says whether data is sent before ranks are known to have begun. Smaller messages are for packets, which need no
// signals either.
func (x *search) early() bool { return x.Bytes > 256<<10 }

// limit is what no plan of a form beats.
func (x *search) limit(f form, packets bool) (float64, error) {
	collective, bytes := x.Collective, x.Bytes
	switch {
	case f == everywhere:
		collective, bytes = spec.AllGather, bytes*x.graph.ranks
	case f == direct && collective == spec.ReduceScatter:
		collective = spec.AllToAll
	}
	if packets {
		bytes *= 2
	}
	b, err := cost.BoundOf(collective, x.Topology, bytes, x.Root)
	if packets || x.early() || err != nil || len(x.graph.links) == 0 {
		return b.Time(), err
	}
	first := slices.MinFunc(x.graph.links, func(a, b cost.Link) int { return cmp.Compare(a.Us, b.Us) })
	return b.Time() + first.Us, nil
}

// try schedules a plan, and guesses what it takes. Windows hide what is not latency.
func (x *search) try(q problem, packets bool, slope float64) float64 {
	chunk := float64((x.Bytes+q.chunks*align-1)/(q.chunks*align)) * align
	bytes := chunk
	if packets {
		bytes *= 2
	}
	random := rand.New(rand.NewPCG(x.Seed, uint64(q.chunks)<<8|uint64(q.form)))
	c := candidate{problem: q, packets: packets, windows: 1, route: q.solve(bytes, slope, random, x.enough())}
	c.whole = c.route.end
	c.guess = c.whole
	if !packets {
		full, first := c.route.fullest(), c.route.handshake()
		latency := min(c.route.latency(), c.route.end-full)
		at := func(windows int) float64 {
			return first + full + latency + (c.route.end-full-latency)/float64(windows)
		}
		for c.windows < maxWindows && chunk/float64(2*c.windows) >= leastWindow &&
			at(c.windows) > at(maxWindows)*near {
			c.windows *= 2
		}
		c.whole, c.guess = at(1), at(c.windows)
	}
	x.least = min(x.least, c.whole)
	if !packets && x.early() { // the search goes on as if ranks waited, for a guess is no plan
		c.whole -= c.route.handshake()
		c.guess = min(c.guess, c.whole)
	}
	x.found = append(x.found, c)
	return c.guess
}

// enough says whether a plan that is being scheduled is to do with what it has.
func (x *search) enough() func() bool {
	return func() bool { return x.ctx.Err() != nil || x.over(scheduling) }
}

// A chunk is divided into so many windows at most, of so many bytes at least.
const (
	maxWindows  = 64
	leastWindow = 4 << 10
)

// name is the plan's.
func (x *search) name() string {
	return cmp.Or(x.Name, fmt.Sprintf("synthesised-%s-%d", x.Collective, x.graph.ranks))
}

// build makes the plan of a candidate.
func (x *search) build(c *candidate, windows int) (*plan.File, error) {
	name := x.name()
	if c.packets {
		p := plan.New(name, c.shape(), plan.Options{Protocol: plan.LL, DoubleScratch: true})
		c.route.packed(p, x.Collective != spec.Broadcast)
		return p.Build()
	}
	early := x.early() && windows == 1
	p := plan.New(name, c.shape(), plan.Options{DoubleScratch: early})
	chunk := (x.Bytes + c.chunks - 1) / c.chunks
	unit := uint64(0)
	if windows > 1 {
		unit = uint64((chunk/windows + align - 1) / align * align)
	}
	c.route.signalled(p, unit, early)
	return p.Build()
}

// built is how many candidates of a kind are made and measured by the model.
const built = 4

// choose makes the best candidates, and takes the best of those that the verifier passes.
func (x *search) choose() (*plan.File, Report, error) {
	type made struct {
		file   *plan.File
		report Report
		sends  int
	}
	var all []made
	model := cost.Model{Topology: x.Topology}
	least := math.Inf(1)
	add := func(f *plan.File, chunks, sends int, form string) error {
		taken, err := model.Of(f, x.Bytes)
		if err != nil {
			return fmt.Errorf("synthesis: %w", err)
		}
		step := chunks * align
		all = append(all, made{f, Report{Bytes: (x.Bytes + step - 1) / step * step, Cost: taken, Form: form}, sends})
		least = min(least, taken.Time)
		return nil
	}
	if err := x.exchanges(add); err != nil {
		return nil, Report{}, err
	}
	for _, c := range x.finalists() {
		before := math.Inf(1)
		for windows := 1; windows <= c.windows && c.guess <= least*near; windows *= 2 {
			if err := x.ctx.Err(); err != nil {
				return nil, Report{}, context.Cause(x.ctx)
			}
			if len(all) > 0 && x.over(1) {
				break
			}
			f, err := x.build(c, windows)
			if err != nil {
				return nil, Report{}, fmt.Errorf("synthesis: %w", err)
			}
			if err := add(f, c.chunks, len(c.route.sends), c.words(windows)); err != nil {
				return nil, Report{}, err
			}
			taken := all[len(all)-1].report.Cost
			if taken.Time > before/near {
				break // more windows bring nothing
			}
			if windows > 1 || !x.early() { // windows wait for each other to begin, too
				before = taken.Time
			}
		}
	}
	var verdict *plan.Verdict
	for len(all) > 0 {
		least := slices.MinFunc(all, func(a, b made) int { return cmp.Compare(a.report.Cost.Time, b.report.Cost.Time) })
		best := 0
		for i, m := range all {
			close := m.report.Cost.Time <= least.report.Cost.Time*near
			if close && (m.sends < all[best].sends || all[best].report.Cost.Time > least.report.Cost.Time*near) {
				best = i
			}
		}
		m := all[best]
		if verdict = plan.Verify(m.file); verdict.Errors() == 0 && (!x.RankOrder || verdict.RankOrder) {
			m.report.Verdict = verdict
			return m.file, m.report, nil
		}
		all = slices.Delete(all, best, best+1)
	}
	return nil, Report{}, fmt.Errorf("synthesis: the verifier passes no plan: %v", verdict.Findings)
}

// finalists are the candidates with the best guesses: of packets, and of data by windows and without.
func (x *search) finalists() (all []*candidate) {
	seen := make(map[*candidate]bool)
	take := func(guess func(c *candidate) float64) {
		var some []*candidate
		for i := range x.found {
			if !math.IsInf(guess(&x.found[i]), 1) {
				some = append(some, &x.found[i])
			}
		}
		slices.SortStableFunc(some, func(a, b *candidate) int {
			return cmp.Or(cmp.Compare(guess(a), guess(b)), len(a.route.sends)-len(b.route.sends))
		})
		for _, c := range some[:min(built, len(some))] {
			if !seen[c] {
				seen[c] = true
				all = append(all, c)
			}
		}
	}
	take(func(c *candidate) float64 {
		if c.packets {
			return c.guess
		}
		return math.Inf(1)
	})
	take(func(c *candidate) float64 {
		if c.packets {
			return math.Inf(1)
		}
		return c.guess
	})
	take(func(c *candidate) float64 {
		if c.packets {
			return math.Inf(1)
		}
		return c.whole
	})
	// The best come first, for time may be over before all are made.
	slices.SortStableFunc(all, func(a, b *candidate) int { return cmp.Compare(a.guess, b.guess) })
	return all
}

// words says how a candidate works.
func (c *candidate) words(windows int) string {
	how := "data and signals"
	if c.packets {
		how = "packets"
	}
	text := fmt.Sprintf("%s in %d chunks", how, c.chunks)
	if windows > 1 {
		text += fmt.Sprintf(", %d windows each", windows)
	}
	if c.collective == spec.AllReduce || c.collective == spec.ReduceScatter {
		text += ", " + c.form.String()
	}
	return text
}

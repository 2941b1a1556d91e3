// Package choice chooses the algorithm of a call, for both engines.
//
// Invariant: a choice is a function of the request, of the group's algorithms, of what was forced when the
// group was made, and of the model. All ranks have the same of each, so all choose the same.
// Where operands lie in memory, whether a stream captures, and how busy a rank is are not among them.
//
// Of the algorithms that fit a request the one that costs least is chosen, by [spec.Algorithm.Estimate];
// of equals, the one that is listed first. Costs are compared at the middle of the request's class of
// sizes. So sizes of one class go the same way, as far as algorithms fit them, and the order is computed
// once for each class and looked up after that.
package choice

import (
	"math"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// Chooser chooses algorithms for one group. It is for one goroutine at a time.
type Chooser struct {
	all    []*spec.Algorithm
	forced []int
	model  *spec.Model
	cache  [cached]ranking
	costs  []float64 // of a ranking in the making

	last       spec.Request // of AtOnce: the shortest operations count every nanosecond
	lastAtOnce int
	lastNamed  int
}

// ranking is the algorithms for a class of requests, by cost.
type ranking struct {
	key   uint64 // 0: none
	order []int
}

const (
	cacheBits = 6
	cached    = 1 << cacheBits
)

// New makes a chooser of these algorithms. Those that are forced are used wherever they fit, in their order.
func New(all []*spec.Algorithm, forced []string, m *spec.Model) *Chooser {
	c := &Chooser{all: all, model: m}
	c.last.Collective = spec.Collectives // of no request
	for _, name := range forced {
		if i := c.Named(name); i >= 0 {
			c.forced = append(c.forced, i)
		}
	}
	return c
}

// Named is the index of the algorithm with a name, or -1.
func (c *Chooser) Named(name string) int {
	if i := c.lastNamed; i < len(c.all) && c.all[i].Name == name {
		return i
	}
	i := slices.IndexFunc(c.all, func(a *spec.Algorithm) bool { return a.Name == name })
	c.lastNamed = max(i, 0)
	return i
}

// Unknown refuses a name that no algorithm has, and lists those that a call of the collective may name.
func (c *Chooser) Unknown(k spec.Collective, name, where string) error {
	var names []string
	for _, a := range c.all {
		if a.Collective == k {
			names = append(names, a.Name)
		}
	}
	if len(names) == 0 {
		return weft.Invalidf("%v: there is no algorithm %q %s; leave the name out", k, name, where)
	}
	return weft.Invalidf("%v: there is no algorithm %q %s; name one of %s, or none", k, name, where,
		strings.Join(names, ", "))
}

// Choose chooses an algorithm for a request whose windows are known, and returns its index, or -1.
func (c *Chooser) Choose(q *spec.Request) int { return c.choose(q, true) }

// AtOnce chooses an eager algorithm, before ranks know where operands lie, or returns -1: it is eager if it
// beats all others when those find every operand in a window, for only they make up for the exchange.
func (c *Chooser) AtOnce(q *spec.Request) int {
	if *q == c.last {
		return c.lastAtOnce
	}
	c.last = *q
	q.Windows = spec.Inputs | spec.Outputs
	i := c.choose(q, true)
	if c.forcedInPlace(q) {
		i = -1
	}
	q.Windows = c.last.Windows
	if i >= 0 && !c.all[i].Eager {
		i = -1
	}
	c.lastAtOnce = i
	return i
}

// forcedInPlace says whether an algorithm that is forced, and not eager, fits where ranks are in place, which is not
// known yet, and comes before one that fits at once.
func (c *Chooser) forcedInPlace(q *spec.Request) bool {
	defer func(w spec.Windows) { q.Windows = w }(q.Windows)
	for _, i := range c.forced {
		a := c.all[i]
		if a.Fits(*q) {
			return false
		}
		q.Windows |= spec.InPlace
		if a.InPlace == spec.OnlyInPlace && a.Fits(*q) {
			return true
		}
		q.Windows &^= spec.InPlace
	}
	return false
}

// AfterExchange chooses among the others once ranks know where operands lie.
func (c *Chooser) AfterExchange(q *spec.Request) int { return c.choose(q, false) }

func (c *Chooser) choose(q *spec.Request, eager bool) int {
	for _, i := range c.forced {
		if a := c.all[i]; (eager || !a.Eager) && a.Fits(*q) {
			return i
		}
	}
	for _, i := range c.ranked(q) {
		if a := c.all[i]; (eager || !a.Eager) && a.Fits(*q) {
			return i
		}
	}
	return -1
}

// ranked is the algorithms of the request's collective by cost, without those whose cost is not known.
func (c *Chooser) ranked(q *spec.Request) []int {
	key := uint64(1)<<63 | uint64(q.Variant)<<44 | uint64(q.Collective)<<40 | uint64(q.Op)<<36 | uint64(q.DType)<<28 |
		uint64(q.Windows)<<24 | uint64(q.Class())<<16 | uint64(q.Ranks)
	const golden = 0x9E3779B97F4A7C15
	r := &c.cache[key*golden>>(64-cacheBits)]
	if r.key == key {
		return r.order
	}
	typical := q.Typical()
	costs := c.costs[:0]
	r.key, r.order = key, r.order[:0]
	for i, a := range c.all {
		if a.Collective != q.Collective || a.OptIn() {
			continue
		}
		us, known := a.Estimate(&typical, c.model)
		if !known {
			continue
		}
		if math.IsNaN(us) {
			us = math.Inf(1)
		}
		at := len(costs)
		for at > 0 && costs[at-1] > us {
			at--
		}
		costs, r.order = slices.Insert(costs, at, us), slices.Insert(r.order, at, i)
	}
	c.costs = costs
	return r.order
}

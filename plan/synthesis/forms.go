package synthesis

import (
	"math/rand/v2"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/spec"
)

// form is a way in which a collective can be done.
type form int

const (
	// direct moves inputs as they are, and a rank adds up what it keeps when all of that is there.
	direct form = iota
	// added adds up on the way: what a rank gets from several others it sends on as one.
	added
	// everywhere gives all inputs to all ranks, and each adds up all.
	everywhere
)

// forms are those of a collective.
func forms(collective string, rankOrder bool) []form {
	switch {
	case collective == spec.AllReduce && rankOrder:
		return []form{direct, everywhere}
	case collective == spec.AllReduce:
		return []form{added, direct, everywhere}
	case collective == spec.ReduceScatter && !rankOrder:
		return []form{added, direct}
	}
	return []form{direct}
}

// String says how sums are made.
func (f form) String() string {
	return [...]string{"inputs move as they are", "sums on the way", "each rank adds up all inputs"}[f]
}

// problem is a collective in so many chunks.
type problem struct {
	*graph
	collective string
	root       int
	chunks     int // of a message: a multiple of the ranks, unless each chunk may have any root
	form       form
}

// factor is the chunks of each rank.
func (q *problem) factor() int { return q.chunks / q.ranks }

// shape is the collective as the builder has it.
func (q *problem) shape() plan.Collective {
	switch q.collective {
	case spec.AllGather:
		return plan.AllGather(q.ranks, q.factor())
	case spec.ReduceScatter:
		return plan.ReduceScatter(q.ranks, q.factor())
	case spec.AllToAll:
		return plan.AllToAll(q.ranks, q.factor())
	case spec.Broadcast:
		return plan.Broadcast(q.ranks, q.root, q.chunks)
	}
	return plan.Custom(spec.AllReduce, q.ranks, q.chunks, q.chunks)
}

// sendsOf is about how many sends the problem has, if no path has more than one link.
func (q *problem) sendsOf() int {
	switch {
	case q.collective == spec.AllReduce && q.form == everywhere:
		return q.chunks * q.ranks * (q.ranks - 1)
	case q.collective == spec.AllReduce:
		return 2 * q.chunks * (q.ranks - 1)
	}
	return q.chunks * (q.ranks - 1)
}

// units are what must travel.
func (q *problem) units() (all []unit) {
	away := func(root, to int) { all = append(all, unit{root: root, away: true, to: to}) }
	inputs := func(root int) {
		for from := range q.ranks {
			if from != root {
				away(from, root)
			}
		}
	}
	for c := range q.chunks {
		root := c % q.ranks
		switch {
		case q.collective == spec.AllGather:
			away(root, -1)
		case q.collective == spec.Broadcast:
			away(q.root, -1)
		case q.collective == spec.AllToAll:
			inputs(root)
		case q.collective == spec.ReduceScatter && q.form == added:
			all = append(all, unit{root: root, in: true, to: -1})
		case q.collective == spec.ReduceScatter:
			inputs(root)
		case q.form == added:
			all = append(all, unit{root: root, free: true, in: true, away: true, to: -1})
		case q.form == direct:
			inputs(root)
			away(root, -1)
		default:
			for from := range q.ranks {
				away(from, -1)
			}
		}
	}
	return all
}

// route makes sends of trees, which are those of units, in their order.
func (q *problem) route(units []unit) *route {
	r := &route{graph: q.graph}
	next := func() *unit {
		u := &units[0]
		units = units[1:]
		return u
	}
	f := q.factor()
	nowhere := func(int) int { return -1 }
	everywhere := func(at int) func(int) int { return func(int) int { return at } }
	// paths lead to a rank alone, from all others, with a chunk of each.
	paths := func(to, at int, into func(from int) int) (sends, from []int) {
		for range q.ranks - 1 {
			u := next()
			s := r.away(u.outward, u.root, at, -1, func(rank int) int {
				if rank == to {
					return into(u.root)
				}
				return -1
			})
			sends, from = append(sends, s[to]), append(from, u.root)
		}
		return sends, from
	}
	sumOf := func(rank, at, into int, sends, from []int) int {
		by := make(map[int]int)
		for i, s := range sends {
			by[s] = from[i]
		}
		x := sum{rank: rank, at: at, into: into, sends: sends}
		r.ordered(&x, func(s int) int { return by[s] })
		r.sums = append(r.sums, x)
		return len(r.sums) - 1
	}
	for c := range q.chunks {
		root, k := c%q.ranks, c/q.ranks
		at := root*f + k // the chunk of a message that is of a rank's part
		switch {
		case q.collective == spec.AllGather:
			r.away(next().outward, root, k, -1, everywhere(at))
			r.owns = append(r.owns, own{root, k, at})
		case q.collective == spec.Broadcast:
			r.away(next().outward, q.root, c, -1, everywhere(c))
			r.owns = append(r.owns, own{q.root, c, c})
		case q.collective == spec.AllToAll:
			paths(root, at, func(from int) int { return from*f + k })
			r.owns = append(r.owns, own{root, at, at})
		case q.collective == spec.ReduceScatter && q.form == added:
			r.toward(next().inward, root, at, k)
		case q.collective == spec.ReduceScatter:
			sends, from := paths(root, at, nowhere)
			sumOf(root, at, k, sends, from)
		case q.form == added:
			u := next()
			r.away(u.outward, u.root, -1, r.toward(u.inward, u.root, c, c), everywhere(c))
		case q.form == direct:
			sends, from := paths(root, c, nowhere)
			r.away(next().outward, root, -1, sumOf(root, c, c, sends, from), everywhere(c))
		default:
			arrived, from := make([][]int, q.ranks), make([][]int, q.ranks)
			for range q.ranks {
				u := next()
				for rank, s := range r.away(u.outward, u.root, c, -1, nowhere) {
					if s >= 0 {
						arrived[rank], from[rank] = append(arrived[rank], s), append(from[rank], u.root)
					}
				}
			}
			for rank := range q.ranks {
				sumOf(rank, c, c, arrived[rank], from[rank])
			}
		}
	}
	return r
}

// solve packs trees and schedules their sends, of so many bytes. It looks for better ones until it has enough.
func (q *problem) solve(bytes, slope float64, random *rand.Rand, enough func() bool) *route {
	p := &packing{graph: q.graph, units: q.units(), bytes: bytes, slope: slope, random: random, enough: enough}
	p.pack()
	r := q.route(p.units)
	r.took = make([]float64, len(r.links))
	for l := range r.links {
		r.took[l] = r.graph.took(l, bytes)
	}
	tries := 8
	if len(r.sends) > 1000 {
		tries = 3
	}
	r.best(random, tries, enough)
	return r
}

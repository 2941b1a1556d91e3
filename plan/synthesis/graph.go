package synthesis

import (
	"math"
	"math/rand/v2"

	"github.com/weftgo/weft/plan/cost"
)

// graph is the links of a topology that are not broken.
type graph struct {
	ranks int
	links []cost.Link
	out   [][]int // links that leave a rank
	in    [][]int // links that lead to it
	of    map[[2]int]int
	far   func(a, b int) bool // ranks are of different hosts
}

func newGraph(t *cost.Topology) *graph {
	g := &graph{
		ranks: t.Ranks, links: t.Working(), out: make([][]int, t.Ranks), in: make([][]int, t.Ranks), of: make(map[[2]int]int),
		far: t.Far,
	}
	for i, l := range g.links {
		g.out[l.From] = append(g.out[l.From], i)
		g.in[l.To] = append(g.in[l.To], i)
		g.of[[2]int{l.From, l.To}] = i
	}
	return g
}

// took is how long a link takes for so many bytes.
func (g *graph) took(link int, bytes float64) float64 { return bytes / g.links[link].GBps / 1e3 }

// hops is the links of a path of the fewest links.
func (g *graph) hops(from, to int) (path []int) {
	last := make([]int, g.ranks)
	for i := range last {
		last[i] = -1
	}
	for queue := []int{from}; len(queue) > 0 && last[to] < 0; queue = queue[1:] {
		for _, l := range g.out[queue[0]] {
			if next := g.links[l].To; next != from && last[next] < 0 {
				last[next] = l
				queue = append(queue, next)
			}
		}
	}
	for at := to; at != from; at = g.links[last[at]].From {
		path = append([]int{last[at]}, path...)
	}
	return path
}

// back is how long a signal takes from the end of a link to its beginning.
func (g *graph) back(link int) (us float64) {
	for _, l := range g.hops(g.links[link].To, g.links[link].From) {
		us += g.links[l].Us
	}
	return us
}

// tree is the link by which each rank is bound to a tree, toward its root; -1 at the root and outside.
type tree []int

// grow makes a tree of links of small weight. With away it leads from the root to all ranks, and otherwise to the root
// from all. What a rank adds is the weight of its link, slope times its distance in time from the root, and, with
// sum, the weights on its path: those are trees of paths.
func (g *graph) grow(root int, away bool, weight, times []float64, slope float64, sum bool) tree {
	links, end := g.in, func(l cost.Link) int { return l.From }
	if away {
		links, end = g.out, func(l cost.Link) int { return l.To }
	}
	t := make(tree, g.ranks)
	far, all := make([]float64, g.ranks), make([]float64, g.ranks)
	best, by := make([]float64, g.ranks), make([]int, g.ranks)
	inside := make([]bool, g.ranks)
	for i := range t {
		t[i], best[i], by[i] = -1, math.Inf(1), -1
	}
	for at := root; ; {
		inside[at] = true
		for _, l := range links[at] {
			next := end(g.links[l])
			if inside[next] {
				continue
			}
			key := weight[l] + slope*(far[at]+times[l])
			if sum {
				key += all[at]
			}
			if key < best[next] {
				best[next], by[next] = key, l
			}
		}
		at = -1
		for r := range best {
			if !inside[r] && by[r] >= 0 && (at < 0 || best[r] < best[at]) {
				at = r
			}
		}
		if at < 0 {
			return t
		}
		l := by[at]
		before := g.links[l].From + g.links[l].To - at
		t[at], far[at], all[at] = l, far[before]+times[l], all[before]+weight[l]
	}
}

// path is what of a tree leads to a rank alone.
func (g *graph) path(t tree, root, to int) tree {
	p := make(tree, len(t))
	for i := range p {
		p[i] = -1
	}
	for at := to; at != root; at = g.links[t[at]].From + g.links[t[at]].To - at {
		p[at] = t[at]
	}
	return p
}

// unit is what travels along trees: from all ranks to a root, added up on the way, or from the root to all or to one.
type unit struct {
	root     int
	free     bool // any rank may be the root
	in, away bool
	to       int // the one rank; -1: all
	inward   tree
	outward  tree
}

// packing finds trees for units such that no link has much more to carry than it must.
type packing struct {
	*graph
	units  []unit
	bytes  float64 // of a unit
	slope  float64 // how much time on the way counts, against room on links
	random *rand.Rand
	enough func() bool
	load   []float64 // microseconds of each link
	times  []float64 // of a unit on each link, with latency
}

// rounds bounds how often units look for better trees.
const rounds = 24

// steep is how much dearer a fuller link is.
const steep = 8

// pack gives each unit its trees. Units choose one after the other the trees that weigh least, where links that carry
// more weigh more, and then again, until nothing gets better.
func (p *packing) pack() {
	p.load, p.times = make([]float64, len(p.links)), make([]float64, len(p.links))
	for l := range p.links {
		p.times[l] = p.took(l, p.bytes) + p.links[l].Us
	}
	var best []unit
	least := math.Inf(1)
	for round, idle := 0, 0; round < rounds && idle < 4 && (round == 0 || !p.enough()); round++ {
		moved := false
		for _, i := range p.random.Perm(len(p.units)) {
			moved = p.again(&p.units[i]) || moved
		}
		idle++
		if most := p.most(); most < least*(1-1e-9) {
			least, idle = most, 0
			best = append(best[:0], p.units...)
		}
		if !moved {
			break
		}
	}
	copy(p.units, best)
	clear(p.load)
	for i := range p.units {
		p.add(&p.units[i], 1)
	}
}

// most is the load of the fullest link.
func (p *packing) most() (us float64) {
	for _, x := range p.load {
		us = max(us, x)
	}
	return us
}

// add puts a unit on its links, or takes it off.
func (p *packing) add(u *unit, sign float64) {
	for _, t := range []tree{u.inward, u.outward} {
		for _, l := range t {
			if l >= 0 {
				p.load[l] += sign * p.took(l, p.bytes)
			}
		}
	}
}

// again has a unit choose, and says whether it moved.
func (p *packing) again(u *unit) bool {
	old := *u
	if old.inward != nil || old.outward != nil {
		p.add(&old, -1)
	}
	full := 0.0
	for l := range p.load {
		full = max(full, p.load[l]+p.took(l, p.bytes))
	}
	weight := make([]float64, len(p.links))
	for l := range weight {
		d := p.took(l, p.bytes)
		weight[l] = full / steep * (math.Pow((p.load[l]+d)/full, steep) - math.Pow(p.load[l]/full, steep))
		weight[l] += d * 1e-3 * (1 + p.random.Float64()/8)
	}
	best, least := old, math.Inf(1)
	if old.inward != nil || old.outward != nil {
		least = p.weigh(&old, weight) * (1 - 1e-6)
	}
	first, last := u.root, u.root
	if u.free {
		first, last = 0, p.ranks-1
	}
	for root := first; root <= last; root++ {
		for _, slope := range []float64{p.slope, p.slope / 16} {
			next := *u
			next.root, next.inward, next.outward = root, nil, nil
			if u.in {
				next.inward = p.grow(root, false, weight, p.times, slope, false)
			}
			if u.away {
				next.outward = p.grow(root, true, weight, p.times, slope, u.to >= 0)
				if u.to >= 0 {
					next.outward = p.path(next.outward, root, u.to)
				}
			}
			if w := p.weigh(&next, weight); w < least {
				best, least = next, w
			}
		}
	}
	*u = best
	p.add(u, 1)
	return least < math.Inf(1) && !same(&best, &old)
}

func same(a, b *unit) bool {
	if a.root != b.root || (a.inward == nil) != (b.inward == nil) || (a.outward == nil) != (b.outward == nil) {
		return false
	}
	for i := range a.inward {
		if a.inward[i] != b.inward[i] {
			return false
		}
	}
	for i := range a.outward {
		if a.outward[i] != b.outward[i] {
			return false
		}
	}
	return true
}

// weigh is what the trees of a unit weigh: their links, and the time to the farthest rank.
func (p *packing) weigh(u *unit, weight []float64) (sum float64) {
	for _, t := range []tree{u.inward, u.outward} {
		if t == nil {
			continue
		}
		far := 0.0
		for r, l := range t {
			if l >= 0 {
				sum += weight[l]
				far = max(far, p.far(t, r))
			}
		}
		sum += p.slope * far
	}
	return sum
}

// far is a rank's distance from the root in a tree.
func (p *packing) far(t tree, r int) (us float64) {
	for t[r] >= 0 {
		l := t[r]
		us += p.times[l]
		r = p.links[l].From + p.links[l].To - r
	}
	return us
}

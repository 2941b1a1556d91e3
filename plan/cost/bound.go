package cost

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/weftgo/weft/plan/spec"
)

// Bound is what no plan of a collective beats on a topology, in microseconds.
type Bound struct {
	Latency   float64 // of the longest path that a message must take
	Bandwidth float64 // of the narrowest cut, with the latency behind its last byte
}

// Time is the larger of both.
func (b Bound) Time() float64 { return max(b.Latency, b.Bandwidth) }

// allSets is for how many ranks all cuts are looked at.
const allSets = 16

// BoundOf is the bound of a collective, by its name in plans or [Broadcast], at a size of message: of the output of an
// all-gather, else of the input. Only a broadcast has a root.
func BoundOf(collective string, t *Topology, bytes, root int) (Bound, error) {
	if err := t.Check(); err != nil {
		return Bound{}, err
	}
	if err := t.Connected(); err != nil {
		return Bound{}, err
	}
	n := newNetwork(t)
	b := Bound{Latency: diameter(n, t.Ranks)}
	part := float64(bytes) / float64(t.Ranks)
	var need func(in, out int) float64 // bytes into a set of so many ranks from so many others
	switch collective {
	case spec.AllGather:
		need = func(_, out int) float64 { return float64(out) * part }
	case spec.ReduceScatter:
		need = func(in, _ int) float64 { return float64(in) * part }
	case spec.AllToAll:
		need = func(in, out int) float64 { return float64(in*out) * part }
		b.Bandwidth = spread(n, t.Ranks, part)
	case spec.AllReduce:
		need = func(int, int) float64 { return float64(bytes) }
	case spec.Broadcast:
		if root < 0 || root >= t.Ranks {
			return Bound{}, fmt.Errorf("cost: root %d; ranks are 0 to %d", root, t.Ranks-1)
		}
		need = func(int, int) float64 { return float64(bytes) }
		b.Latency = 0
		for r := range t.Ranks {
			b.Latency = max(b.Latency, n.latency[root][r])
		}
	default:
		return Bound{}, fmt.Errorf("cost: nothing is known of what a %q needs", collective)
	}
	if bytes <= 0 {
		b.Bandwidth = 0
		return b, nil
	}
	if collective == spec.Broadcast {
		b.Bandwidth = max(b.Bandwidth, passed(n, t.Ranks, root, float64(bytes)))
	}
	sets(t.Ranks, func(inside func(rank int) bool, size int) {
		if collective == spec.Broadcast && inside(root) {
			return
		}
		var into, across float64 // bandwidth into the set; and between parts: the set and each other rank
		least, shortest := math.Inf(1), math.Inf(1)
		for _, l := range n.links {
			from, to := inside(l.From), inside(l.To)
			if !from && to {
				into += l.GBps
				least = min(least, l.Us)
			}
			if !from || !to {
				across += l.GBps
				shortest = min(shortest, l.Us)
			}
		}
		b.Bandwidth = max(b.Bandwidth, need(size, t.Ranks-size)/into/1e3+least)
		if collective == spec.AllReduce {
			sends := 2 * float64(t.Ranks-size)
			b.Bandwidth = max(b.Bandwidth, sends*float64(bytes)/across/1e3+shortest)
		}
	})
	return b, nil
}

// passed is how long a broadcast takes whose root sends some bytes to all others itself, and each of the rest once, for
// others to pass on. The former cost the root's links as often as there are others, and the latter a second latency.
// With the best share of both all is there at once.
func passed(n *network, ranks, root int, bytes float64) float64 {
	room, first, second := 0.0, math.Inf(1), math.Inf(1)
	for _, l := range n.links {
		switch {
		case l.From == root:
			room += l.GBps * 1e3
			first = min(first, l.Us)
		case l.To != root:
			second = min(second, l.Us)
		}
	}
	if ranks < 3 || room == 0 {
		return 0 // nobody is there to pass on
	}
	others := float64(ranks - 1)
	return first + min(others*bytes/room, bytes/room+second*(others-1)/others)
}

func diameter(n *network, ranks int) (us float64) {
	for a := range ranks {
		for b := range ranks {
			us = max(us, n.latency[a][b])
		}
	}
	return us
}

// sets calls a function for sets of ranks, none of which is empty or has all ranks.
func sets(ranks int, each func(inside func(rank int) bool, size int)) {
	if ranks <= allSets {
		for set := uint(1); set < 1<<ranks-1; set++ {
			each(func(rank int) bool { return set>>rank&1 == 1 }, bits.OnesCount(set))
		}
		return
	}
	for size := 1; size < ranks; size++ {
		for first := range ranks {
			each(func(rank int) bool { return (rank-first+ranks)%ranks < size }, size)
		}
	}
}

// spread is how long all links together take for the paths of an all-to-all, by links and by time on them.
func spread(n *network, ranks int, part float64) (us float64) {
	for _, length := range []func(l *Link) float64{
		func(*Link) float64 { return 1 },
		func(l *Link) float64 { return 1 / l.GBps },
	} {
		var sum, room float64
		for i := range n.links {
			room += n.links[i].GBps * length(&n.links[i])
		}
		for a := range ranks {
			for _, d := range distances(n, a, length) {
				sum += d
			}
		}
		if room > 0 {
			us = max(us, sum*part/room/1e3)
		}
	}
	return us
}

// distances are those from a rank, by a length of links.
func distances(n *network, from int, length func(*Link) float64) []float64 {
	d := make([]float64, len(n.from))
	for i := range d {
		d[i] = math.Inf(1)
	}
	d[from] = 0
	for range d {
		for i := range n.links {
			l := &n.links[i]
			d[l.To] = min(d[l.To], d[l.From]+length(l))
		}
	}
	return d
}

package synthesis

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
)

// send is a chunk on a link.
type send struct {
	link  int
	at    int   // the chunk of its rank's input, which it begins with, or adds to what others sent
	own   bool  // it has that chunk
	after []int // sends that bring what it sends, or adds up
	sum   bool
	of    int // the sum that it sends; -1: none
	into  int // the chunk of the output where it ends; -1: none
	begin float64
	rest  float64 // the longest way from its beginning to the end of all
}

// sum is what a rank adds up and keeps.
type sum struct {
	rank  int
	at    int   // the chunk of its own input
	into  int   // the chunk of its output
	sends []int // what others add
	of    []int // the rank of each, if they are inputs as they were, in the order of ranks; nil: sums of several
	ready float64
}

// own is a chunk that a rank keeps of its own input.
type own struct{ rank, at, into int }

// route is everything that travels, and when.
type route struct {
	*graph
	sends []send
	sums  []sum
	owns  []own
	took  []float64 // microseconds of a send on each link
	end   float64
}

// away adds the sends of a tree that leads from its root. The chunk is that of the root's input, or a sum. It gives
// the send that leads to each rank, or -1.
func (r *route) away(t tree, root, at, of int, into func(rank int) int) []int {
	sends := make([]int, r.ranks)
	for i := range sends {
		sends[i] = -1
	}
	sends[root] = -2
	var visit func(rank int) int
	visit = func(rank int) int {
		if sends[rank] != -1 || t[rank] < 0 {
			return sends[rank]
		}
		s := send{link: t[rank], at: at, of: -1, into: into(rank)}
		if before := visit(r.links[t[rank]].From); before >= 0 {
			s.after = []int{before}
		} else if s.of = of; of < 0 {
			s.own = true
		}
		sends[rank] = len(r.sends)
		r.sends = append(r.sends, s)
		return sends[rank]
	}
	for rank := range t {
		visit(rank)
	}
	sends[root] = -1
	return sends
}

// toward adds the sends of a tree that leads to its root and adds up on the way, and the sum at the root. It gives the
// number of that.
func (r *route) toward(t tree, root, at, into int) int {
	below := make([][]int, r.ranks) // ranks that send to a rank
	for rank, l := range t {
		if l >= 0 {
			below[r.links[l].To] = append(below[r.links[l].To], rank)
		}
	}
	var visit func(rank int) []int
	visit = func(rank int) (sends []int) {
		for _, b := range below[rank] {
			s := send{link: t[b], at: at, own: true, sum: true, of: -1, into: -1, after: visit(b)}
			sends = append(sends, len(r.sends))
			r.sends = append(r.sends, s)
		}
		return sends
	}
	x := sum{rank: root, at: at, into: into, sends: visit(root)}
	single := true
	for _, s := range x.sends {
		single = single && len(r.sends[s].after) == 0
	}
	if single {
		r.ordered(&x, func(s int) int { return r.links[r.sends[s].link].From })
	}
	r.sums = append(r.sums, x)
	return len(r.sums) - 1
}

// ordered puts what a sum adds in the order of the ranks that it is from.
func (r *route) ordered(x *sum, from func(send int) int) {
	slices.SortFunc(x.sends, func(a, b int) int { return from(a) - from(b) })
	x.of = make([]int, 0, len(x.sends))
	for _, s := range x.sends {
		x.of = append(x.of, from(s))
	}
}

// lengths finds the longest way from each send to the end, some of it by chance, so that sends of one length take
// turns.
func (r *route) lengths(random *rand.Rand, chance float64) {
	next := make([][]int, len(r.sends))
	sums := make([]float64, len(r.sums))
	behind := make([][]int, len(r.sums))
	feeds := make([][]int, len(r.sends))
	for i := range r.sends {
		for _, a := range r.sends[i].after {
			next[a] = append(next[a], i)
		}
		if of := r.sends[i].of; of >= 0 {
			behind[of] = append(behind[of], i)
		}
		r.sends[i].rest = -1
	}
	for i := range sums {
		sums[i] = -1
		for _, s := range r.sums[i].sends {
			feeds[s] = append(feeds[s], i)
		}
	}
	var ofSend, ofSum func(i int) float64
	ofSum = func(i int) float64 {
		if sums[i] < 0 {
			sums[i] = 0
			for _, s := range behind[i] {
				sums[i] = max(sums[i], ofSend(s))
			}
		}
		return sums[i]
	}
	ofSend = func(i int) float64 {
		s := &r.sends[i]
		if s.rest < 0 {
			far := 0.0
			for _, n := range next[i] {
				far = max(far, ofSend(n))
			}
			for _, n := range feeds[i] {
				far = max(far, ofSum(n))
			}
			s.rest = far + (r.took[s.link]+r.links[s.link].Us)*(1+chance*random.Float64())
		}
		return s.rest
	}
	for i := range r.sends {
		ofSend(i)
	}
}

// moment is when a send may begin, or has arrived, or when a link is free.
type moment struct {
	at   float64
	kind int
	id   int
}

const (
	arrives = iota
	isReady
	isFree
)

// clock is a heap of moments.
type clock []moment

func (c clock) Len() int { return len(c) }
func (c clock) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(c[i].at, c[k].at), c[i].kind-c[k].kind, c[i].id-c[k].id) < 0
}
func (c clock) Swap(i, k int) { c[i], c[k] = c[k], c[i] }
func (c *clock) Push(m any)   { *c = append(*c, m.(moment)) }
func (c *clock) Pop() any {
	last := len(*c) - 1
	m := (*c)[last]
	*c = (*c)[:last]
	return m
}

// schedule says when each send begins: a link that is free takes of what is there the send with the longest way to
// the end.
func (r *route) schedule() {
	missing := make([]int, len(r.sends))
	missingOf := make([]int, len(r.sums))
	next, feeds, behind := make([][]int, len(r.sends)), make([][]int, len(r.sends)), make([][]int, len(r.sums))
	for i := range r.sends {
		s := &r.sends[i]
		missing[i] = len(s.after)
		for _, a := range s.after {
			next[a] = append(next[a], i)
		}
		if s.of >= 0 {
			missing[i]++
			behind[s.of] = append(behind[s.of], i)
		}
	}
	for i := range r.sums {
		missingOf[i] = len(r.sums[i].sends)
		for _, s := range r.sums[i].sends {
			feeds[s] = append(feeds[s], i)
		}
	}
	var c clock
	waiting := make([][]int, len(r.links))
	free := make([]float64, len(r.links)) // when each link is
	r.end = 0
	have := func(i int, at float64) {
		if missing[i]--; missing[i] <= 0 {
			heap.Push(&c, moment{at, isReady, i})
		}
	}
	summed := func(i int, at float64) {
		r.sums[i].ready = at
		for _, s := range behind[i] {
			have(s, at)
		}
	}
	for i := range r.sends {
		if missing[i] == 0 {
			have(i, 0)
		}
	}
	for i := range r.sums {
		if missingOf[i] == 0 {
			summed(i, 0)
		}
	}
	for len(c) > 0 {
		m := heap.Pop(&c).(moment)
		link := m.id
		switch m.kind {
		case arrives:
			r.end = max(r.end, m.at)
			for _, n := range next[m.id] {
				have(n, m.at)
			}
			for _, n := range feeds[m.id] {
				if missingOf[n]--; missingOf[n] == 0 {
					summed(n, m.at)
				}
			}
			continue
		case isReady:
			link = r.sends[m.id].link
			waiting[link] = append(waiting[link], m.id)
			heap.Push(&c, moment{max(m.at, free[link]), isFree, link}) // when all of this time is known
			continue
		}
		if m.at < free[link] || len(waiting[link]) == 0 {
			continue
		}
		best := 0
		for k, s := range waiting[link] {
			if r.sends[s].rest > r.sends[waiting[link][best]].rest {
				best = k
			}
		}
		s := waiting[link][best]
		waiting[link] = slices.Delete(waiting[link], best, best+1)
		r.sends[s].begin = m.at
		free[link] = m.at + r.took[link]
		heap.Push(&c, moment{free[link], isFree, link})
		heap.Push(&c, moment{free[link] + r.links[link].Us, arrives, s})
	}
}

// fullest is how long the fullest link is busy.
func (r *route) fullest() (us float64) {
	load := make([]float64, len(r.links))
	for i := range r.sends {
		load[r.sends[i].link] += r.took[r.sends[i].link]
		us = max(us, load[r.sends[i].link])
	}
	return us
}

// best schedules a few times, with other sends first where several have one length, and keeps the shortest. It ends
// early when it has enough.
func (r *route) best(random *rand.Rand, tries int, enough func() bool) {
	begins, readies, end := make([]float64, len(r.sends)), make([]float64, len(r.sums)), 0.0
	for n := range tries {
		if n > 0 && enough() {
			break
		}
		chance := 0.0
		if n > 0 {
			chance = []float64{0.01, 0.1, 0.4}[n%3]
		}
		r.lengths(random, chance)
		r.schedule()
		if n == 0 || r.end < end {
			end = r.end
			for i := range r.sends {
				begins[i] = r.sends[i].begin
			}
			for i := range r.sums {
				readies[i] = r.sums[i].ready
			}
		}
	}
	r.end = end
	for i := range r.sends {
		r.sends[i].begin = begins[i]
	}
	for i := range r.sums {
		r.sums[i].ready = readies[i]
	}
}

// latency is how long everything would take if links had any bandwidth.
func (r *route) latency() float64 {
	far := make(map[int]float64)
	var ofSend func(i int) float64
	ofSum := make(map[int]float64)
	sumOf := func(i int) float64 {
		if _, ok := ofSum[i]; !ok {
			us := 0.0
			for _, s := range r.sums[i].sends {
				us = max(us, ofSend(s))
			}
			ofSum[i] = us
		}
		return ofSum[i]
	}
	ofSend = func(i int) float64 {
		if _, ok := far[i]; !ok {
			us := 0.0
			for _, a := range r.sends[i].after {
				us = max(us, ofSend(a))
			}
			if of := r.sends[i].of; of >= 0 {
				us = max(us, sumOf(of))
			}
			far[i] = us + r.links[r.sends[i].link].Us
		}
		return far[i]
	}
	us := 0.0
	for i := range r.sends {
		us = max(us, ofSend(i))
	}
	return us
}

// handshake is how long it takes until all who write to a rank know that it has begun.
func (r *route) handshake() (us float64) {
	seen := make([]bool, len(r.links))
	for i := range r.sends {
		if l := r.sends[i].link; !seen[l] {
			seen[l] = true
			us = max(us, r.back(l))
		}
	}
	return us
}

package synthesis

import (
	"cmp"
	"slices"

	"github.com/weftgo/weft/plan"
)

// action is a send or a sum of a worker, or a chunk that it unpacks, or one that has come from another host.
type action struct{ send, sum, unpack, land int }

func sends(s int) action   { return action{s, -1, -1, -1} }
func sumsUp(i int) action  { return action{-1, i, -1, -1} }
func unpacks(s int) action { return action{-1, -1, s, -1} }
func lands(s int) action   { return action{-1, -1, -1, s} }

// worker is a block in the making.
type worker struct {
	rank    int
	actions []action
	block   *plan.Block
}

// writer makes a plan of a route.
type writer struct {
	*route
	plan    *plan.Plan
	packets bool
	workers []*worker
	blocks  []int       // how many each rank has
	senders [][]*worker // of each link: none where nothing is sent
	locals  []*worker   // of each rank: for its own copies, and for waiting at the end
	slots   []int       // the place of a send in the scratch of who gets it; -1 in the output
	sumSlot []int       // of a sum that is sent on as packets
	outSlot []int       // of a send to another host, the packets that its port reads; -1: others are there
	used    []int       // chunks of each rank's scratch, or slots
	scratch []plan.Buffer
	ends    map[[2]int]*pair // what the ranks of a link have
	// early says of each send that it ends in an output, and begins before its link knows that the output's rank has
	// begun. So it goes to scratch, and is copied there.
	early []bool
}

// pair is both ends of a channel.
type pair struct {
	from, to *plan.Channel
	far      bool // it leads to another host
}

// channel makes a channel that has an end at each of two ranks: through ports where these are of different hosts.
func (w *writer) channel(from, to int) *pair {
	make, far := w.plan.Memory, w.far(from, to)
	if far {
		make = w.plan.Port
	}
	a, b := make(from, to), make(to, from)
	return &pair{a, b, far}
}

// hint signals what orders no data.
func (p *pair) hint(b *plan.Block) {
	if p.far {
		b.Signal(p.from)
	} else {
		b.RelaxedSignal(p.from)
	}
}

// heed waits for that.
func (p *pair) heed(b *plan.Block) {
	if p.far {
		b.Wait(p.to)
	} else {
		b.RelaxedWait(p.to)
	}
}

// farLink says whether a link leads to another host.
func (w *writer) farLink(l int) bool { return w.far(w.links[l].From, w.links[l].To) }

func newWriter(r *route, p *plan.Plan, packets, apart, early bool) *writer {
	w := &writer{
		route: r, plan: p, packets: packets, blocks: make([]int, r.ranks), senders: make([][]*worker, len(r.links)),
		locals: make([]*worker, r.ranks), slots: make([]int, len(r.sends)), sumSlot: make([]int, len(r.sums)),
		outSlot: make([]int, len(r.sends)),
		used:    make([]int, r.ranks), ends: make(map[[2]int]*pair), early: make([]bool, len(r.sends)),
	}
	for i := range r.sends {
		s := &r.sends[i]
		w.early[i] = early && s.into >= 0 && s.begin < r.back(s.link)
	}
	w.share(apart)
	w.place()
	return w
}

// worker adds one to a rank.
func (w *writer) worker(rank int) *worker {
	x := &worker{rank: rank, block: w.plan.Rank(rank).Block(w.blocks[rank])}
	w.blocks[rank]++
	w.workers = append(w.workers, x)
	return x
}

// local is a rank's worker for what no link is for.
func (w *writer) local(rank int) *worker {
	if w.locals[rank] == nil {
		w.locals[rank] = w.worker(rank)
	}
	return w.locals[rank]
}

// share gives each link that has sends a worker, and has as many workers add up on a rank as bring it something to add.
// Apart, what is sent after it was added up has workers of its own.
func (w *writer) share(apart bool) {
	order := make([]int, len(w.sends))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(w.sends[a].begin, w.sends[b].begin) })
	byLink := make([][]int, len(w.links))
	for _, s := range order {
		byLink[w.sends[s].link] = append(byLink[w.sends[s].link], s)
	}
	for rank := range w.ranks {
		for _, l := range w.out[rank] {
			if len(byLink[l]) == 0 {
				continue
			}
			var of [2]*worker
			for _, s := range byLink[l] {
				which := 0
				if apart && w.summed(s) {
					which = 1
				}
				if of[which] == nil {
					of[which] = w.worker(rank)
					w.senders[l] = append(w.senders[l], of[which])
				}
				of[which].actions = append(of[which].actions, sends(s))
			}
			for _, x := range w.senders[l] { // what a port has brought is known to who waits at that port
				if w.packets || !w.farLink(l) {
					break
				}
				y := w.worker(w.links[l].To)
				for _, a := range x.actions {
					y.actions = append(y.actions, lands(a.send))
				}
			}
		}
		var sums []int
		from := make(map[int]bool)
		for i := range w.sums {
			if w.sums[i].rank == rank {
				sums = append(sums, i)
				for _, s := range w.sums[i].sends {
					from[w.sends[s].link] = true
				}
			}
		}
		slices.SortStableFunc(sums, func(a, b int) int { return cmp.Compare(w.sums[a].ready, w.sums[b].ready) })
		var adders []*worker
		for k, i := range sums {
			if k < max(len(from), 1) {
				adders = append(adders, w.worker(rank))
			}
			x := adders[k%len(adders)]
			x.actions = append(x.actions, sumsUp(i))
		}
		for _, l := range w.in[rank] {
			var x *worker
			for _, s := range byLink[l] {
				if w.sends[s].into < 0 || !w.packets && !w.early[s] {
					continue
				}
				if x == nil {
					x = w.worker(rank)
				}
				x.actions = append(x.actions, unpacks(s))
			}
		}
	}
	for _, o := range w.owns {
		w.local(o.rank)
	}
}

// summed says whether a send is of a sum that is complete.
func (w *writer) summed(s int) bool {
	for len(w.sends[s].after) > 0 && !w.sends[s].sum {
		s = w.sends[s].after[0]
	}
	return w.sends[s].of >= 0
}

// place gives scratch to what does not end in an output where it arrives.
func (w *writer) place() {
	for i := range w.sends {
		s := &w.sends[i]
		w.slots[i] = -1
		if w.packets || s.into < 0 || w.early[i] {
			to := w.links[s.link].To
			w.slots[i] = w.used[to]
			w.used[to]++
		}
	}
	for i := range w.sums {
		w.sumSlot[i] = w.used[w.sums[i].rank]
		if w.packets { // for its own input and for what it gives
			w.used[w.sums[i].rank] += 2
		}
	}
	for i := range w.sends {
		s := &w.sends[i]
		w.outSlot[i] = -1
		if from := w.links[s.link].From; w.packets && w.farLink(s.link) && (s.own || s.sum && len(s.after) > 0) {
			w.outSlot[i] = w.used[from]
			w.used[from]++
		}
	}
	for rank, n := range w.used {
		w.scratch = append(w.scratch, w.plan.Rank(rank).Scratch(n))
	}
}

// input, output and slot are chunks.
func (w *writer) input(rank, at int) plan.Chunk  { return w.plan.Rank(rank).Input().Chunk(at, 1) }
func (w *writer) output(rank, at int) plan.Chunk { return w.plan.Rank(rank).Output().Chunk(at, 1) }
func (w *writer) slot(rank, at int) plan.Chunk   { return w.scratch[rank].Chunk(at, 1) }

// arrival is where a send ends.
func (w *writer) arrival(s int) plan.Chunk {
	to := w.links[w.sends[s].link].To
	if w.slots[s] >= 0 {
		return w.slot(to, w.slots[s])
	}
	return w.output(to, w.sends[s].into)
}

// copies has ranks copy what they keep.
func (w *writer) copies() {
	for _, o := range w.owns {
		w.local(o.rank).block.Copy(w.output(o.rank, o.into), w.input(o.rank, o.at))
	}
}

// begun tells who writes to a rank that it has begun: a block of the writer's for the link waits for that, at its
// beginning, or behind what goes to scratch, or at its end. Where no link leads back, other ranks pass it on.
func (w *writer) begun() (wait func(link int, b *plan.Block)) {
	ends := make(map[int]*pair)
	type relay struct {
		hop           int
		rank          int
		wait, forward *pair
	}
	var relays []relay
	for l, x := range w.senders {
		if x == nil {
			continue
		}
		writer, owner := w.links[l].From, w.links[l].To
		path := w.hops(owner, writer)
		var first *worker
		if back := w.senders[path[0]]; back != nil {
			first = back[0]
		} else {
			first = w.local(owner)
		}
		var before *pair
		for hop, k := range path {
			c := w.channel(w.links[k].From, w.links[k].To)
			if hop == 0 {
				c.hint(first.block)
			} else {
				relays = append(relays, relay{hop, w.links[k].From, before, c})
			}
			before = c
		}
		ends[l] = before
	}
	slices.SortStableFunc(relays, func(a, b relay) int { return a.hop - b.hop })
	passing := make(map[int]*worker)
	for _, r := range relays {
		if passing[r.rank] == nil {
			passing[r.rank] = w.worker(r.rank)
		}
		r.wait.heed(passing[r.rank].block)
		r.forward.hint(passing[r.rank].block)
	}
	return func(l int, b *plan.Block) { ends[l].heed(b) }
}

// adds is what a sum adds, in its order: what others sent, and its own input.
func (w *writer) adds(x *sum) (all []plan.Chunk) {
	own := false
	for i, s := range x.sends {
		if x.of != nil && !own && x.of[i] > x.rank {
			all, own = append(all, w.input(x.rank, x.at)), true
		}
		all = append(all, w.arrival(s))
	}
	if !own {
		all = append(all, w.input(x.rank, x.at))
	}
	return all
}

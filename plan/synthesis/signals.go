package synthesis

import (
	"github.com/weftgo/weft/plan"
)

// token says to a block what another one has done: a signal, or a semaphore between blocks of one rank.
type token struct {
	channel   *pair
	semaphore *plan.Semaphore
	count     int // so many are given in all
	taken     int
}

func (t *token) give(b *plan.Block) {
	if t.semaphore != nil {
		b.Release(t.semaphore)
	} else {
		b.Signal(t.channel.from)
	}
}

func (t *token) take(b *plan.Block) {
	if t.semaphore != nil {
		b.Acquire(t.semaphore)
	} else {
		b.Wait(t.channel.to)
	}
	t.taken++
}

// signalled makes a plan that writes data where it belongs, and signals. With a unit its blocks repeat what they do for
// windows of so many bytes of each chunk. Early, it sends before ranks are known to have begun, which needs scratch of
// two halves, and no windows.
func (r *route) signalled(p *plan.Plan, unit uint64, early bool) {
	w := newWriter(r, p, false, unit > 0, early)
	tokens := w.tokens()
	data := make([]*plan.Channel, len(w.links))
	for l, x := range w.senders {
		if x != nil && !w.farLink(l) {
			data[l] = w.channel(w.links[l].From, w.links[l].To).from
		}
	}
	wait := w.begun()
	waits := make(map[*worker]int) // for which link a worker is still to wait
	for l, x := range w.senders {
		switch {
		case x == nil:
		case early:
			waits[x[0]] = l
		default:
			wait(l, x[0].block)
		}
	}
	w.copies()
	for _, x := range w.workers {
		if len(x.actions) == 0 {
			continue
		}
		body := func() {
			for _, a := range x.actions {
				w.take(tokens, x, a)
				if l, left := waits[x]; left && a.send >= 0 && w.slots[a.send] < 0 {
					wait(l, x.block)
					delete(waits, x)
				}
				switch {
				case a.unpack >= 0:
					x.block.Copy(w.output(x.rank, w.sends[a.unpack].into), w.arrival(a.unpack))
				case a.sum >= 0:
					w.add(x.block, &w.sums[a.sum])
				case a.send >= 0:
					c := data[w.sends[a.send].link]
					if c == nil { // where it is, and that it is there, goes the same way
						c = tokens.after[a][0].channel.from
					}
					w.send(x.block, c, a.send)
				}
				for _, t := range tokens.after[a] {
					t.give(x.block)
				}
			}
		}
		if unit > 0 {
			x.block.Loop(unit, 1, body)
		} else {
			body()
		}
		if l, left := waits[x]; left {
			wait(l, x.block)
		}
	}
	for l, senders := range w.senders {
		for _, x := range senders {
			if w.farLink(l) { // who waits at the port knows
				x.block.Flush(tokens.after[x.actions[0]][0].channel.from)
				continue
			}
			// Who waits for the last send of a block knows that all are there.
			if last := x.actions[len(x.actions)-1]; len(tokens.after[last]) == 0 {
				done := w.channel(w.links[l].From, w.links[l].To)
				x.block.Signal(done.from)
				w.local(w.links[l].To).block.Wait(done.to)
			}
		}
	}
}

// add adds up.
func (w *writer) add(b *plan.Block, x *sum) {
	to := w.output(x.rank, x.into)
	if all := w.adds(x); len(all) > 1 {
		b.Reduce(to, all...)
	} else {
		b.Copy(to, all[0])
	}
}

// send puts a chunk, of a sum after adding up in the place of the first chunk that came.
func (w *writer) send(b *plan.Block, c *plan.Channel, i int) {
	s := &w.sends[i]
	from := w.links[s.link].From
	var src plan.Chunk
	switch {
	case s.sum && len(s.after) > 0:
		src = w.arrival(s.after[0])
		var all []plan.Chunk
		for _, a := range s.after {
			all = append(all, w.arrival(a))
		}
		b.Reduce(src, append(all, w.input(from, s.at))...)
	case s.own:
		src = w.input(from, s.at)
	case s.of >= 0:
		src = w.output(from, w.sums[s.of].into)
	default:
		src = w.arrival(s.after[0])
	}
	b.Put(c, w.arrival(i), src)
}

// tokens is what blocks tell each other.
type tokens struct {
	after  map[action][]*token // that a block gives after an action
	before map[action][]needed // that it takes before one
}

// needed is a token, of which so many must have been taken.
type needed struct {
	*token
	count int
}

func (w *writer) tokens() *tokens {
	t := &tokens{make(map[action][]*token), make(map[action][]needed)}
	owner := make(map[action]*worker)
	for _, x := range w.workers {
		for _, a := range x.actions {
			owner[a] = x
		}
	}
	// Each block's actions, in order, and who needs them.
	needs := make(map[action][]action)
	need := func(a, by action) { needs[a] = append(needs[a], by) }
	come := func(s int) action { // when a send is known to be there
		if w.farLink(w.sends[s].link) {
			return lands(s)
		}
		return sends(s)
	}
	for i := range w.sends {
		s := &w.sends[i]
		if come(i) != sends(i) {
			need(sends(i), lands(i))
		}
		if w.early[i] {
			need(come(i), unpacks(i))
		}
		for _, a := range s.after {
			need(come(a), sends(i))
		}
		if s.of >= 0 {
			need(sumsUp(s.of), sends(i))
		}
	}
	for i := range w.sums {
		for _, a := range w.sums[i].sends {
			need(come(a), sumsUp(i))
		}
	}
	between := make(map[[2]*worker]*token)
	for _, x := range w.workers {
		for _, a := range x.actions {
			given := make(map[*worker]*token)
			for _, n := range needs[a] {
				to := owner[n]
				if given[to] == nil {
					key := [2]*worker{x, to}
					if between[key] == nil {
						between[key] = new(token)
						if x.rank == to.rank {
							between[key].semaphore = w.plan.Rank(x.rank).Semaphore(0)
						} else {
							between[key].channel = w.channel(x.rank, to.rank)
						}
					}
					given[to] = between[key]
					given[to].count++
					t.after[a] = append(t.after[a], given[to])
				}
				t.before[n] = append(t.before[n], needed{given[to], given[to].count})
			}
		}
	}
	return t
}

// take takes what an action needs.
func (w *writer) take(t *tokens, x *worker, a action) {
	for _, n := range t.before[a] {
		for n.taken < n.count {
			n.take(x.block)
		}
	}
}

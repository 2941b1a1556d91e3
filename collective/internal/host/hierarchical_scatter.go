package host

import (
	"context"
	"slices"
)

// scatterByHost is hierarchical for a reduce-scatter. The ranks of a host fold their parts for each rank of the
// communicator, each rank those of some; then each rank folds the hosts' partials of its own part. For each rank of
// another host one partial leaves a host.
func (c *call) scatterByHost(ctx context.Context, exact bool) error {
	c.plan()
	h, f := c.hosts, c.partialsOf(exact)
	local := h.live[h.here]
	size := max(c.stepOf(f)/c.Ranks&^63, 64)
	// A rank's payload has, one after the other, the partials of the ranks that it folds for.
	folds := func(host int) (list [][]int) {
		for range h.live[host] {
			list = append(list, nil)
		}
		for _, ranks := range h.live {
			for k, i := range ranks {
				list[k%len(list)] = append(list[k%len(list)], i)
			}
		}
		return list
	}
	mine := folds(h.here)[h.self]
	type source struct{ rank, place, parts int } // of the partial of this rank's part on a host
	sources := make([]source, len(h.live))
	for k, ranks := range h.live {
		list := folds(k)
		by := list[h.self%len(ranks)]
		sources[k].rank, sources[k].parts = h.rank(c, k, h.self%len(ranks)), len(by)
		for place, i := range by {
			if i == c.Self {
				sources[k].place = place
			}
		}
	}
	begin := func(at int) error {
		round := uint64(0)
		if len(local) > 1 {
			stage := h.within.Fill(c.Ranks * size)
			for i := range c.Live {
				if p := &c.send[i]; p.n > at {
					n := p.part(at, size)
					c.stage(stage[i*size:][:n], c.in[p.src+at:][:n])
				}
			}
			round = h.within.Publish()
			if err := h.within.Await(ctx, c.name, round); err != nil {
				return err
			}
		}
		to := c.Fill(f.bytes(size) * len(mine))
		for place, i := range mine {
			p := &c.send[i]
			n := p.part(at, size)
			if n == 0 {
				continue
			}
			h.rows = h.rows[:0]
			for k, l := range local {
				if k == h.self {
					h.rows = append(h.rows, c.in[p.src+at:][:n])
				} else {
					h.rows = append(h.rows, h.within.Payload(c.Live[l], round, c.Ranks*size)[i*size:][:n])
				}
			}
			f.within(to[f.bytes(size)*place:][:f.bytes(n)], h.rows)
		}
		for k, ranks := range h.live {
			first, last := 0, 0
			for place, i := range mine {
				if !slices.Contains(ranks, i) || c.send[i].n <= at {
					continue
				}
				if last == 0 {
					first = place * f.bytes(size)
				}
				last = place*f.bytes(size) + f.bytes(c.send[i].part(at, size))
			}
			c.Limit(h.number(c, k), first, last)
		}
		c.Publish()
		return nil
	}
	return c.ahead(ctx, size, begin, func(at int, round uint64) error {
		n := c.recv[c.Self].part(at, size)
		if n == 0 {
			return nil
		}
		h.rows = h.rows[:0]
		for _, s := range sources {
			payload := c.Payload(s.rank, round, f.bytes(size)*s.parts)
			h.rows = append(h.rows, payload[f.bytes(size)*s.place:][:f.bytes(n)])
		}
		f.across(c.out[at:at+n], h.rows)
		return nil
	})
}

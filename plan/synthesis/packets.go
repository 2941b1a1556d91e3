package synthesis

import "github.com/weftgo/weft/plan"

// packed makes a plan that sends packets, which need no signals: blocks wait for packets themselves. Scratch has a slot
// for each send, and two halves, so nobody waits for ranks to begin. A rank that hears nothing from those to whom it
// writes waits before its end until they have begun.
func (r *route) packed(p *plan.Plan, hears bool) {
	w := newWriter(r, p, true, false, false)
	// What is added up on the way lies behind the slots, each of which takes two chunks.
	inner := make([]int, w.ranks)
	place := make([]int, len(w.sends))
	for i := range w.sends {
		if s := &w.sends[i]; s.sum && len(s.after) > 0 {
			from := w.links[s.link].From
			place[i] = inner[from]
			inner[from]++
		}
	}
	sums := make([]plan.Buffer, w.ranks)
	for rank, n := range inner {
		if n > 0 {
			p.Rank(rank).Scratch(w.used[rank])
			sums[rank] = p.Rank(rank).Scratch(n)
		}
	}
	data := make([]*plan.Channel, len(w.links))
	for l, x := range w.senders {
		if x != nil {
			data[l] = w.channel(w.links[l].From, w.links[l].To).from
		}
	}
	var wait func(link int, b *plan.Block)
	if !hears {
		wait = w.begun()
	}
	w.copies()
	for _, x := range w.workers {
		b := x.block
		for _, a := range x.actions {
			switch {
			case a.sum >= 0:
				w.addPackets(b, a.sum)
				continue
			case a.unpack >= 0:
				b.UnpackPackets(w.output(x.rank, w.sends[a.unpack].into), w.arrival(a.unpack))
				continue
			}
			s := &w.sends[a.send]
			c, to := data[s.link], w.arrival(a.send)
			switch {
			case s.sum && len(s.after) > 0:
				var slots []plan.Chunk
				for _, before := range s.after {
					slots = append(slots, w.arrival(before))
				}
				mine := sums[x.rank].Chunk(place[a.send], 1)
				b.ReducePackets(mine, w.input(x.rank, s.at), slots...)
				w.putPackets(b, c, to, mine, a.send)
			case s.own:
				w.putPackets(b, c, to, w.input(x.rank, s.at), a.send)
			case s.of >= 0:
				b.ReadPutPackets(c, to, w.slot(x.rank, w.sumSlot[s.of]+1))
			default:
				b.ReadPutPackets(c, to, w.arrival(s.after[0]))
			}
		}
	}
	for l, senders := range w.senders {
		for _, x := range senders {
			if w.farLink(l) {
				x.block.Flush(data[l])
			}
		}
	}
	for l, x := range w.senders {
		if x != nil && !hears {
			wait(l, x[0].block)
		}
	}
}

// putPackets sends data as packets. A port takes packets, and so it has a slot of them.
func (w *writer) putPackets(b *plan.Block, c *plan.Channel, to, data plan.Chunk, send int) {
	if w.outSlot[send] >= 0 {
		own := w.slot(w.links[w.sends[send].link].From, w.outSlot[send])
		b.CopyPackets(own, data)
		data = own
	}
	b.PutPackets(c, to, data)
}

// addPackets adds up packets, and makes packets of the sum if it is sent on. Operations on packets add their local data
// last. So a sum in the order of ranks has the last rank's data there, and packets of its own.
func (w *writer) addPackets(b *plan.Block, i int) {
	x := &w.sums[i]
	out, in := w.output(x.rank, x.into), w.input(x.rank, x.at)
	var slots []plan.Chunk
	last := len(x.sends) - 1
	switch {
	case last < 0:
		b.Copy(out, in)
	case x.of == nil || x.of[last] < x.rank:
		for _, s := range x.sends {
			slots = append(slots, w.arrival(s))
		}
		b.ReducePackets(out, in, slots...)
	default:
		own := w.slot(x.rank, w.sumSlot[i])
		b.CopyPackets(own, in)
		b.UnpackPackets(out, w.arrival(x.sends[last]))
		placed := false
		for k, s := range x.sends[:last] {
			if !placed && x.of[k] > x.rank {
				slots, placed = append(slots, own), true
			}
			slots = append(slots, w.arrival(s))
		}
		if !placed {
			slots = append(slots, own)
		}
		b.ReducePackets(out, out, slots...)
	}
	for k := range w.sends {
		if w.sends[k].of == i {
			b.CopyPackets(w.slot(x.rank, w.sumSlot[i]+1), out)
			return
		}
	}
}

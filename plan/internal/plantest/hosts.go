package plantest

import (
	"fmt"

	"github.com/weftgo/weft/plan"
)

// Across has programs for ranks on several hosts, whose names are letters: "aab" is two ranks on a host and one on
// another. Ranks of one host share memory, others reach each other through ports.
func Across(hosts string) []Program {
	all := []Program{
		{"gather", func() *plan.Plan { return GatherAcross(hosts) }},
		{"all-to-all in windows", func() *plan.Plan { return ExchangeAcross(hosts) }},
		{"two-shot", func() *plan.Plan { return TwoShotAcross(hosts) }},
		{"forward", func() *plan.Plan { return Forward(len(hosts), true) }},
		{"broadcast", func() *plan.Plan { return BroadcastAcross(hosts) }},
	}
	for form := 0; form < 3 && len(hosts) > 2; form++ { // in a ring of two, both channels lead to one rank
		all = append(all, Program{fmt.Sprint("sends, form ", form), func() *plan.Plan { return Sends(len(hosts), form) }})
	}
	return all
}

// endsAcross is Ends of memory within hosts and of ports between them.
func endsAcross(p *plan.Plan, hosts string) [][]*plan.Channel {
	return Ends(p, len(hosts), func(from, to int) *plan.Channel {
		if hosts[from] == hosts[to] {
			return p.Memory(from, to)
		}
		return p.Port(from, to)
	})
}

// meet has a rank signal to all others, and wait for all of them.
func meet(b *plan.Block, row []*plan.Channel, rank int) {
	for _, c := range Others(row, rank) {
		b.Signal(c)
	}
	for _, c := range Others(row, rank) {
		b.Wait(c)
	}
}

// GatherAcross is an all-gather out of place whose ranks write their inputs to all others.
func GatherAcross(hosts string) *plan.Plan {
	n := len(hosts)
	p := plan.New("gather across", plan.AllGather(n, 1), plan.Options{})
	c := endsAcross(p, hosts)
	for r := range n {
		b, in := p.Rank(r).Block(0), p.Rank(r).Input().Chunk(0, 1)
		meet(b, c[r], r)
		b.Copy(p.Rank(r).Output().Chunk(r, 1), in)
		for i := 1; i < n; i++ {
			peer := (r + i) % n
			b.Put(c[r][peer], p.Rank(peer).Output().Chunk(r, 1), in)
		}
		meet(b, c[r], r)
	}
	return p
}

// ExchangeAcross is an all-to-all through scratch, window by window: one block writes, and one copies.
func ExchangeAcross(hosts string) *plan.Plan {
	n := len(hosts)
	p := plan.New("exchange across", plan.AllToAll(n, 1), plan.Options{})
	c := endsAcross(p, hosts)
	var scratch []plan.Buffer
	for r := range n {
		scratch = append(scratch, p.Rank(r).Scratch(n))
	}
	for r := range n {
		rank := p.Rank(r)
		in, out := rank.Input(), rank.Output()
		full, empty := rank.Semaphore(0), rank.Semaphore(1)
		put, get := rank.Block(0), rank.Block(1)
		put.Copy(out.Chunk(r, 1), in.Chunk(r, 1))
		put.Loop(4<<10, 1, func() {
			put.Acquire(empty)
			meet(put, c[r], r) // its scratch is free
			for i := 1; i < n; i++ {
				q := (r + i) % n
				put.Put(c[r][q], scratch[q].Chunk(r, 1), in.Chunk(q, 1))
			}
			meet(put, c[r], r)
			put.Release(full)
		})
		get.Loop(4<<10, 1, func() {
			get.Acquire(full)
			for i := 1; i < n; i++ {
				q := (r + i) % n
				get.Copy(out.Chunk(q, 1), scratch[r].Chunk(q, 1))
			}
			get.Release(empty)
		})
	}
	return p
}

// TwoShotAcross is an all-reduce in place: ranks write each chunk to its owner's scratch, which folds it in rank order
// and writes the sum to all.
func TwoShotAcross(hosts string) *plan.Plan {
	n := len(hosts)
	p := plan.New("two-shot across", plan.AllReduce(n, 1), plan.Options{InPlace: true})
	c := endsAcross(p, hosts)
	var scratch []plan.Buffer
	for r := range n {
		scratch = append(scratch, p.Rank(r).Scratch(n))
	}
	for r := range n {
		b, in := p.Rank(r).Block(0), p.Rank(r).Input()
		meet(b, c[r], r)
		for i := 1; i < n; i++ {
			q := (r + i) % n
			b.Put(c[r][q], scratch[q].Chunk(r, 1), in.Chunk(q, 1))
		}
		meet(b, c[r], r)
		rows := []plan.Chunk{}
		for q := range n {
			rows = append(rows, scratch[r].Chunk(q, 1))
		}
		rows[r] = in.Chunk(r, 1)
		b.Reduce(in.Chunk(r, 1), rows...)
		for i := 1; i < n; i++ {
			q := (r + i) % n
			b.Put(c[r][q], p.Rank(q).Input().Chunk(r, 1), in.Chunk(r, 1))
		}
		meet(b, c[r], r)
	}
	return p
}

// BroadcastAcross writes the input of rank 0 to the outputs of all.
func BroadcastAcross(hosts string) *plan.Plan {
	n := len(hosts)
	p := plan.New("broadcast across", plan.Broadcast(n, 0, 1), plan.Options{})
	c := endsAcross(p, hosts)
	for r := range n {
		b := p.Rank(r).Block(0)
		if r > 0 {
			b.Signal(c[r][0])
			b.Wait(c[r][0])
			b.Signal(c[r][0])
			continue
		}
		in := p.Rank(0).Input().Chunk(0, 1)
		b.Copy(p.Rank(0).Output().Chunk(0, 1), in)
		for q := 1; q < n; q++ {
			b.Wait(c[0][q])
			b.Put(c[0][q], p.Rank(q).Output().Chunk(0, 1), in)
			b.Signal(c[0][q])
			b.Wait(c[0][q])
		}
	}
	return p
}

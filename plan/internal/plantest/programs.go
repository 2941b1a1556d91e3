// Package plantest has plans of our own, for tests of whatever takes plans: every operation is in some of them, and
// every form that the builder makes of neighbours.
package plantest

import (
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/spec"
)

// Program is a plan that the verifier passes, without a finding.
type Program struct {
	Name  string
	Build func() *plan.Plan
}

// Ends makes a channel from each rank to each other one, and gives them by both.
func Ends(p *plan.Plan, n int, of func(from, to int) *plan.Channel) [][]*plan.Channel {
	all := make([][]*plan.Channel, n)
	for a := range n {
		all[a] = make([]*plan.Channel, n)
		for b := range n {
			if a != b {
				all[a][b] = of(a, b)
			}
		}
	}
	return all
}

// Others is a row without the rank itself, from the next rank on.
func Others(row []*plan.Channel, rank int) (all []*plan.Channel) {
	for i := 1; i < len(row); i++ {
		all = append(all, row[(rank+i)%len(row)])
	}
	return all
}

// Programs has every operation, and every form that the builder makes of neighbours.
func Programs() []Program {
	return []Program{
		{"two-shot", func() *plan.Plan { return TwoShot(3) }},
		{"two-shot of two", func() *plan.Plan { return TwoShot(2) }},
		{"one-shot packets", func() *plan.Plan { return OneShotPackets(3, plan.Sum) }},
		{"one-shot packets, max", func() *plan.Plan { return OneShotPackets(2, plan.Max) }},
		{"two-phase packets", func() *plan.Plan { return TwoPhasePackets(3) }},
		{"gather by put", func() *plan.Plan { return Gather(3, false) }},
		{"gather by get", func() *plan.Plan { return Gather(3, true) }},
		{"gather by a ring", func() *plan.Plan { return Ring(4) }},
		{"gather by forwarding packets", func() *plan.Plan { return Forward(3, false) }},
		{"gather by forwarding packets through ports", func() *plan.Plan { return Forward(3, true) }},
		{"hierarchical packets", func() *plan.Plan { return Hierarchical(2, 2, 1, 2) }},
		{"hierarchical packets in groups", func() *plan.Plan { return Hierarchical(2, 3, 2, 3) }},
		{"switch", func() *plan.Plan { return Switched(2, true) }},
		{"switch by parts", func() *plan.Plan { return Switched(2, false) }},
		{"switch packets", SwitchPackets},
		{"pipelined all-to-all", func() *plan.Plan { return Pipelined(3) }},
		{"sends through ports", func() *plan.Plan { return Sends(3, 0) }},
		{"sends with signals", func() *plan.Plan { return Sends(3, 1) }},
		{"sends with flushes", func() *plan.Plan { return Sends(3, 2) }},
		{"groups", Groups},
		{"ring of sums", func() *plan.Plan { return RingOfSums(3) }},
		{"sums sent on", SumsSentOn},
		{"blocks that share", BlocksThatShare},
		{"sums by reading", SumsByReading},
		{"sums as packets for two", SumsForTwo},
		{"input written behind packets", Overwritten},
		{"gather by pulling", func() *plan.Plan { return Pulled(3) }},
		{"one-shot by reading", func() *plan.Plan { return OneShotApart(3) }},
		{"two-shot in windows", func() *plan.Plan { return TwoShotApart(3) }},
	}
}

// Larger has more ranks, blocks and parts than the other programs: for executors, whose time does not grow with what a
// verifier looks at.
func Larger() []Program {
	return []Program{
		{"ring of 3", func() *plan.Plan { return Ring(3) }},
		{"ring of 8", func() *plan.Plan { return Ring(8) }},
		{"two-shot of 8", func() *plan.Plan { return TwoShot(8) }},
		{"two-shot in windows of 4", func() *plan.Plan { return TwoShotApart(4) }},
		{"one-shot packets of 8", func() *plan.Plan { return OneShotPackets(8, plan.Sum) }},
		{"one-shot packets, min", func() *plan.Plan { return OneShotPackets(4, plan.Min) }},
		{"two-phase packets of 4", func() *plan.Plan { return TwoPhasePackets(4) }},
		{"hierarchical packets of 8", func() *plan.Plan { return Hierarchical(2, 4, 2, 3) }},
		{"pipelined all-to-all of 4", func() *plan.Plan { return Pipelined(4) }},
		{"switch of 4", func() *plan.Plan { return Switched(4, true) }},
		{"ring of sums of 5", func() *plan.Plan { return RingOfSums(5) }},
	}
}

// OneShotPackets gives all inputs to all ranks as packets, and each folds them.
func OneShotPackets(n int, reduction spec.Reduction) *plan.Plan {
	p := plan.New("one-shot", plan.AllReduce(n, 1), plan.Options{
		Protocol: plan.LL, InPlace: true, DoubleScratch: true, Reduction: reduction,
	})
	c := Ends(p, n, p.Memory)
	var inbox []plan.Buffer
	for r := range n {
		inbox = append(inbox, p.Rank(r).Scratch(n*n))
	}
	for r := range n {
		b, all := p.Rank(r).Block(0), p.Rank(r).Input().Chunk(0, n)
		var slots []plan.Chunk
		for i := 1; i < n; i++ {
			peer := (r + i) % n
			b.PutPackets(c[r][peer], inbox[peer].Chunk(r*n, n), all)
			slots = append(slots, inbox[r].Chunk(peer*n, n))
		}
		b.ReducePackets(all, all, slots...)
	}
	return p
}

// TwoPhasePackets reduces a chunk a rank, in a block for each, and sends the results as packets.
func TwoPhasePackets(n int) *plan.Plan {
	p := plan.New("two-phase", plan.AllReduce(n, n-1), plan.Options{
		Protocol: plan.LL, InPlace: true, DoubleScratch: true,
	})
	c := Ends(p, n, p.Memory)
	f := n - 1 // chunks of a rank: one for each of its blocks
	var first, second []plan.Buffer
	for r := range n {
		first = append(first, p.Rank(r).Scratch(n*f))
		second = append(second, p.Rank(r).Scratch(n*f))
	}
	for r := range n {
		in := p.Rank(r).Input()
		for k := range f {
			b := p.Rank(r).Block(k)
			for i := 1; i < n; i++ {
				peer := (r + i) % n
				b.PutPackets(c[r][peer], first[peer].Chunk(r*f+k, 1), in.Chunk(peer*f+k, 1))
			}
			own := in.Chunk(r*f+k, 1)
			var slots []plan.Chunk
			for i := 1; i < n; i++ {
				slots = append(slots, first[r].Chunk((r+i)%n*f+k, 1))
			}
			b.ReducePackets(own, own, slots...)
			for i := 1; i < n; i++ {
				peer := (r + i) % n
				b.PutPackets(c[r][peer], second[peer].Chunk(r*f+k, 1), own)
			}
			for i := 1; i < n; i++ {
				peer := (r + i) % n
				b.UnpackPackets(in.Chunk(peer*f+k, 1), second[r].Chunk(peer*f+k, 1))
			}
		}
	}
	return p
}

// Gather is an all-gather in place in which ranks write to others, or read from them.
func Gather(n int, reads bool) *plan.Plan {
	p := plan.New("gather", plan.AllGather(n, 1), plan.Options{InPlace: true})
	c := Ends(p, n, p.Memory)
	for r := range n {
		b, out := p.Rank(r).Block(0), p.Rank(r).Output()
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
		for i := 1; i < n; i++ {
			peer := (r + i) % n
			if reads {
				b.Get(c[r][peer], out.Chunk(peer, 1), p.Rank(peer).Output().Chunk(peer, 1))
			} else {
				b.Put(c[r][peer], p.Rank(peer).Output().Chunk(r, 1), out.Chunk(r, 1))
			}
		}
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
	}
	return p
}

// Ring is an all-gather in place in which every rank passes to the next what it got last.
func Ring(n int) *plan.Plan {
	p := plan.New("ring", plan.AllGather(n, 1), plan.Options{InPlace: true})
	var next, last []*plan.Channel
	for r := range n {
		next = append(next, p.Memory(r, (r+1)%n))
		last = append(last, p.Memory(r, (r+n-1)%n))
	}
	for r := range n {
		b, to := p.Rank(r).Block(0), p.Rank((r+1)%n)
		b.RelaxedSignal(last[r]) // its writer may begin
		b.RelaxedWait(next[r])
		for step := range n - 1 {
			at := (r + n - step) % n
			b.Put(next[r], to.Output().Chunk(at, 1), p.Rank(r).Output().Chunk(at, 1))
			b.Signal(next[r])
			b.Wait(last[r])
		}
	}
	return p
}

// Broadcast is the input of a rank written to the outputs of all others, or read by them.
func Broadcast(n, root int, reads bool) *plan.Plan {
	p := plan.New("broadcast", plan.Broadcast(n, root, 1), plan.Options{})
	c := Ends(p, n, p.Memory)
	in := p.Rank(root).Input().Chunk(0, 1)
	for r := range n {
		b, out := p.Rank(r).Block(0), p.Rank(r).Output().Chunk(0, 1)
		if r == root {
			b.Copy(out, in)
			b.Signal(Others(c[r], r)...)
			b.Wait(Others(c[r], r)...)
			for q := range n {
				if q != r && !reads {
					b.Put(c[r][q], p.Rank(q).Output().Chunk(0, 1), in)
				}
			}
			b.Signal(Others(c[r], r)...)
			b.Wait(Others(c[r], r)...)
			continue
		}
		b.Signal(c[r][root])
		b.Wait(c[r][root])
		if reads {
			b.Get(c[r][root], out, in)
		}
		b.Signal(c[r][root])
		b.Wait(c[r][root])
	}
	return p
}

// Forward is an all-gather whose ranks make packets of their input once, and send those on.
func Forward(n int, ports bool) *plan.Plan {
	p := plan.New("forward", plan.AllGather(n, 1), plan.Options{
		Protocol: plan.LL, InPlace: true, DoubleScratch: true,
	})
	of := p.Memory
	if ports {
		of = p.Port
	}
	c := Ends(p, n, of)
	var slots []plan.Buffer
	for r := range n {
		slots = append(slots, p.Rank(r).Scratch(n))
	}
	for r := range n {
		b, out := p.Rank(r).Block(0), p.Rank(r).Output()
		b.CopyPackets(slots[r].Chunk(r, 1), out.Chunk(r, 1))
		for i := 1; i < n; i++ {
			b.ReadPutPackets(c[r][(r+i)%n], slots[(r+i)%n].Chunk(r, 1), slots[r].Chunk(r, 1))
		}
		for i := 1; i < n; i++ {
			peer := (r + i) % n
			b.UnpackPackets(out.Chunk(peer, 1), slots[r].Chunk(peer, 1))
		}
	}
	return p
}

// Hierarchical is an all-reduce of several nodes: packets within the node, packets of sums between the ranks of one
// position, packets of results within the node. Each chunk of a rank has a group of blocks.
func Hierarchical(nodes, local, factor, group int) *plan.Plan {
	n := nodes * local
	p := plan.New("hierarchical", plan.Custom(spec.AllReduce, n, local*factor, local*factor), plan.Options{
		Protocol: plan.LL, InPlace: true, DoubleScratch: true,
	})
	near, far := make([][]*plan.Channel, n), make([][]*plan.Channel, n)
	for r := range n {
		near[r], far[r] = make([]*plan.Channel, n), make([]*plan.Channel, n)
		for q := range n {
			switch {
			case q == r:
			case q/local == r/local:
				near[r][q] = p.Memory(r, q)
			case q%local == r%local:
				far[r][q] = p.Port(r, q)
			}
		}
	}
	var gathered, mine, sums, results []plan.Buffer
	for r := range n {
		gathered = append(gathered, p.Rank(r).Scratch(local*factor))
		mine = append(mine, p.Rank(r).Scratch(factor))
		sums = append(sums, p.Rank(r).Scratch(nodes*factor))
		results = append(results, p.Rank(r).Scratch(local*factor))
	}
	for r := range n {
		rank, node, at := p.Rank(r), r/local*local, r%local
		in := rank.Input()
		for k := range factor {
			var blocks []*plan.Block
			for g := range group {
				blocks = append(blocks, rank.Block(k*group+g))
			}
			own := in.Chunk(k*local+at, 1)
			rank.Group(blocks, func(b *plan.Block) {
				for i := 1; i < local; i++ {
					q := (at + i) % local
					b.PutPackets(near[r][node+q], gathered[node+q].Chunk(k*local+at, 1), in.Chunk(k*local+q, 1))
				}
				var slots []plan.Chunk
				for i := 1; i < local; i++ {
					slots = append(slots, gathered[r].Chunk(k*local+(at+i)%local, 1))
				}
				b.ReducePackets(own, own, slots...)
				b.CopyPackets(mine[r].Chunk(k, 1), own)
			})
			if group > 1 {
				rank.Barrier(blocks...)
			}
			for i := 1; i < nodes; i++ {
				q := (r + i*local) % n
				blocks[0].PutPackets(far[r][q], sums[q].Chunk(k*nodes+r/local, 1), mine[r].Chunk(k, 1))
			}
			rank.Group(blocks, func(b *plan.Block) {
				var slots []plan.Chunk
				for i := 1; i < nodes; i++ {
					slots = append(slots, sums[r].Chunk(k*nodes+(r+i*local)%n/local, 1))
				}
				b.ReducePackets(own, own, slots...)
				for i := 1; i < local; i++ {
					b.PutPackets(near[r][node+(at+i)%local], results[node+(at+i)%local].Chunk(k*local+at, 1), own)
				}
				for _, part := range [][2]int{{0, at}, {at + 1, local - at - 1}} {
					if part[1] > 0 {
						b.UnpackPackets(in.Chunk(k*local+part[0], part[1]), results[r].Chunk(k*local+part[0], part[1]))
					}
				}
			})
		}
	}
	return p
}

// Switched is an all-reduce by a switch: each rank folds its chunk of all, and stores it to all.
func Switched(n int, whole bool) *plan.Plan {
	p := plan.New("switched", plan.AllReduce(n, 1), plan.Options{InPlace: true})
	c := Ends(p, n, p.Memory)
	var all []int
	for r := range n {
		all = append(all, r)
	}
	s := p.Switch(plan.Input, all...)
	for r := range n {
		b := p.Rank(r).Block(0)
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
		if whole {
			b.SwitchReduceStore(s, r, r, 1)
		} else {
			sum := p.Rank(r).Scratch(1).Chunk(0, 1)
			b.SwitchReduce(s, sum, r)
			b.SwitchStore(s, r, sum)
		}
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
	}
	return p
}

// SwitchedBroadcast is the input of rank 0, which stores it to all through a switch.
func SwitchedBroadcast(n int) *plan.Plan {
	p := plan.New("switched broadcast", plan.Broadcast(n, 0, 1), plan.Options{})
	c := Ends(p, n, p.Memory)
	var all []int
	for r := range n {
		all = append(all, r)
	}
	s := p.Switch(plan.Output, all...)
	root := p.Rank(0).Block(0)
	root.Wait(Others(c[0], 0)...)
	root.SwitchStore(s, 0, p.Rank(0).Input().Chunk(0, 1))
	root.Signal(Others(c[0], 0)...)
	for r := 1; r < n; r++ {
		b := p.Rank(r).Block(0)
		b.Signal(c[r][0])
		b.Wait(c[r][0])
	}
	return p
}

// SwitchPackets is an all-gather by packets through a switch, which others blocks unpack.
func SwitchPackets() *plan.Plan {
	const n = 2
	p := plan.New("switch packets", plan.AllGather(n, 1), plan.Options{
		Protocol: plan.LL, InPlace: true, DoubleScratch: true,
	})
	s := p.Switch(plan.Scratch, 0, 1)
	for r := range n {
		rank := p.Rank(r)
		slots, out := rank.Scratch(n), rank.Output()
		rank.Block(0).CopyPackets(slots.Chunk(r, 1), out.Chunk(r, 1))
		rank.Block(0).SwitchStorePackets(s, r, slots.Chunk(r, 1))
		rank.Block(1).UnpackPackets(out.Chunk(1-r, 1), slots.Chunk(1-r, 1))
	}
	return p
}

// Pipelined is an all-to-all through scratch, window by window: one block puts, and one copies.
func Pipelined(n int) *plan.Plan {
	p := plan.New("pipelined", plan.AllToAll(n, 1), plan.Options{})
	c := Ends(p, n, p.Memory)
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
		put.Loop(1<<20, 1, func() {
			put.Acquire(empty)
			put.Signal(Others(c[r], r)...) // its scratch is free
			put.Wait(Others(c[r], r)...)
			for i := 1; i < n; i++ {
				q := (r + i) % n
				put.Put(c[r][q], scratch[q].Chunk(r, 1), in.Chunk(q, 1))
			}
			put.Signal(Others(c[r], r)...)
			put.Wait(Others(c[r], r)...)
			put.Release(full)
		})
		get.Loop(1<<20, 1, func() {
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

// Sends gives every rank the input of the one before, through ports, in three forms.
func Sends(n, form int) *plan.Plan {
	p := plan.New("sends", plan.SendRecv(n, 2), plan.Options{})
	var next, last []*plan.Channel
	for r := range n {
		next = append(next, p.Port(r, (r+1)%n))
		last = append(last, p.Port(r, (r+n-1)%n))
	}
	for r := range n {
		b := p.Rank(r).Block(0)
		in, to := p.Rank(r).Input().Chunk(0, 2), p.Rank((r+1)%n).Output().Chunk(0, 2)
		b.Signal(last[r])
		b.Wait(next[r])
		switch form {
		case 0:
			b.Put(next[r], to, in)
			b.Signal(next[r])
			b.Flush(next[r])
		case 1:
			b.PutWithSignal(next[r], to, in)
		case 2:
			b.PutWithSignalAndFlush(next[r], to, in)
		}
		b.Wait(last[r])
		if form == 1 {
			b.Signal(last[r]) // it has arrived
			b.Wait(next[r])
		}
	}
	return p
}

// Groups is an all-gather out of place whose chunks have two or three blocks each.
func Groups() *plan.Plan {
	const n = 2
	p := plan.New("groups", plan.AllGather(n, 1), plan.Options{})
	var c [n][6]*plan.Channel
	for r := range n {
		for k := range 6 {
			c[r][k] = p.Memory(r, 1-r)
		}
	}
	for r := range n {
		rank := p.Rank(r)
		in, out := rank.Input().Chunk(0, 1), rank.Output()
		theirs := p.Rank(1-r).Output().Chunk(r, 1)
		var blocks []*plan.Block
		for k := range 5 {
			blocks = append(blocks, rank.Block(k))
		}
		for k, b := range blocks {
			b.Signal(c[r][k])
			b.Wait(c[r][k])
		}
		rank.Group(blocks[:2], func(b *plan.Block) { b.Copy(out.Chunk(r, 1), in) })
		k := 2
		rank.Group(blocks[2:], func(b *plan.Block) {
			b.Put(c[r][k], theirs, in)
			b.Signal(c[r][k])
			b.Wait(c[r][k])
			k++
		})
	}
	return p
}

// RingOfSums is a reduce-scatter: partial sums go around in scratch.
func RingOfSums(n int) *plan.Plan {
	p := plan.New("ring of sums", plan.ReduceScatter(n, 1), plan.Options{})
	var next, last []*plan.Channel
	var slot []plan.Buffer
	for r := range n {
		next = append(next, p.Memory(r, (r+1)%n))
		last = append(last, p.Memory(r, (r+n-1)%n))
		slot = append(slot, p.Rank(r).Scratch(n))
	}
	for r := range n {
		b, to := p.Rank(r).Block(0), (r+1)%n
		in := p.Rank(r).Input()
		b.Signal(last[r]) // its scratch is free
		b.Wait(next[r])
		b.Put(next[r], slot[to].Chunk(0, 1), in.Chunk((r+n-1)%n, 1))
		for step := range n - 1 {
			b.Signal(next[r])
			b.Wait(last[r])
			at := (r + 2*n - 2 - step) % n
			got := slot[r].Chunk(step, 1)
			if step == n-2 {
				b.Reduce(p.Rank(r).Output().Chunk(0, 1), got, in.Chunk(at, 1))
				break
			}
			b.Reduce(got, got, in.Chunk(at, 1))
			b.Put(next[r], slot[to].Chunk(step+1, 1), got)
		}
	}
	return p
}

// SumsSentOn is an all-reduce of two ranks: inputs are put, folded locally, and one sends the results.
func SumsSentOn() *plan.Plan {
	p := plan.New("sums sent on", plan.AllReduce(2, 1), plan.Options{})
	c := Ends(p, 2, p.Memory)
	inbox := []plan.Buffer{p.Rank(0).Scratch(2), p.Rank(1).Scratch(2)}
	for r := range 2 {
		b, in, out := p.Rank(r).Block(0), p.Rank(r).Input(), p.Rank(r).Output()
		b.Signal(c[r][1-r])
		b.Wait(c[r][1-r])
		b.Put(c[r][1-r], inbox[1-r].Chunk(0, 1), in.Chunk(1-r, 1))
		b.Signal(c[r][1-r])
		b.Wait(c[r][1-r])
		b.Reduce(out.Chunk(r, 1), in.Chunk(r, 1), inbox[r].Chunk(0, 1))
		b.Put(c[r][1-r], p.Rank(1-r).Output().Chunk(r, 1), out.Chunk(r, 1))
		b.Signal(c[r][1-r])
		b.Wait(c[r][1-r])
	}
	return p
}

// BlocksThatShare is a gather whose second block waits for the first by a barrier and a semaphore.
func BlocksThatShare() *plan.Plan {
	p := plan.New("blocks that share", plan.AllGather(2, 1), plan.Options{})
	c := Ends(p, 2, p.Memory)
	for r := range 2 {
		rank := p.Rank(r)
		stage, done := rank.Scratch(1).Chunk(0, 1), rank.Semaphore(0)
		a, b := rank.Block(0), rank.Block(1)
		a.Signal(c[r][1-r])
		a.Wait(c[r][1-r])
		a.Copy(stage, rank.Input().Chunk(0, 1))
		rank.Barrier(a, b)
		b.Copy(rank.Output().Chunk(r, 1), stage)
		b.Release(done)
		a.Put(c[r][1-r], p.Rank(1-r).Output().Chunk(r, 1), stage)
		a.Acquire(done)
		a.Signal(c[r][1-r])
		a.Wait(c[r][1-r])
	}
	return p
}

// SumsByReading is a reduce-scatter whose ranks read the others' inputs.
func SumsByReading() *plan.Plan {
	const n = 3
	p := plan.New("sums by reading", plan.ReduceScatter(n, 1), plan.Options{Reduction: plan.Min})
	c := Ends(p, n, p.Memory)
	for r := range n {
		b := p.Rank(r).Block(0)
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
		from := []plan.Chunk{p.Rank(r).Input().Chunk(r, 1)}
		for i := 1; i < n; i++ {
			from = append(from, p.Rank((r+i)%n).Input().Chunk(r, 1))
		}
		b.Reduce(p.Rank(r).Output().Chunk(0, 1), from...)
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
	}
	return p
}

// SumsForTwo is an all-reduce out of place in which a second block unpacks all results, the rank's own too.
func SumsForTwo() *plan.Plan {
	const n = 2
	p := plan.New("sums for two", plan.AllReduce(n, 1), plan.Options{Protocol: plan.LL, DoubleScratch: true})
	c := Ends(p, n, p.Memory)
	var first, second []plan.Buffer
	for r := range n {
		first = append(first, p.Rank(r).Scratch(1))
		second = append(second, p.Rank(r).Scratch(n))
	}
	for r := range n {
		rank, q := p.Rank(r), 1-r
		b := rank.Block(0)
		b.PutPackets(c[r][q], first[q].Chunk(0, 1), rank.Input().Chunk(q, 1))
		b.ReducePackets(rank.Output().Chunk(r, 1), rank.Input().Chunk(r, 1), first[r].Chunk(0, 1))
		b.CopyPackets(second[r].Chunk(r, 1), rank.Output().Chunk(r, 1))
		b.PutPackets(c[r][q], second[q].Chunk(r, 1), rank.Output().Chunk(r, 1))
		rank.Block(1).UnpackPackets(rank.Output().Chunk(q, 1), second[r].Chunk(q, 1))
	}
	return p
}

// TwoShot is an all-reduce in place: every rank reduces its chunk of all inputs, and gives it to the others.
func TwoShot(ranks int) *plan.Plan {
	p := plan.New("two-shot", plan.AllReduce(ranks, 1), plan.Options{InPlace: true})
	for r := range ranks {
		b := p.Rank(r).Block(0)
		own := p.Rank(r).Input().Chunk(r, 1)
		var peers []*plan.Channel
		var theirs []plan.Chunk
		for i := 1; i < ranks; i++ {
			peer := (r + i) % ranks
			peers = append(peers, p.Memory(r, peer))
			theirs = append(theirs, p.Rank(peer).Input().Chunk(r, 1))
		}
		b.RelaxedSignal(peers...) // this rank has begun, and its input is there
		b.RelaxedWait(peers...)
		b.Reduce(own, append([]plan.Chunk{own}, theirs...)...)
		for i, c := range peers {
			b.Put(c, theirs[i], own)
		}
		b.Signal(peers...)
		b.Wait(peers...)
	}
	return p
}

// Overwritten is a gather of two ranks by packets, after which one writes into the input of the other.
func Overwritten() *plan.Plan {
	p := plan.New("Overwritten", plan.AllGather(2, 1), plan.Options{Protocol: plan.LL, DoubleScratch: true})
	c := Ends(p, 2, p.Memory)
	slots := []plan.Buffer{p.Rank(0).Scratch(1), p.Rank(1).Scratch(1)}
	for r := range 2 {
		b, rank := p.Rank(r).Block(0), p.Rank(r)
		b.Copy(rank.Output().Chunk(r, 1), rank.Input().Chunk(0, 1))
		b.PutPackets(c[r][1-r], slots[1-r].Chunk(0, 1), rank.Input().Chunk(0, 1))
		b.UnpackPackets(rank.Output().Chunk(1-r, 1), slots[r].Chunk(0, 1))
		if r == 1 {
			b.Nop() // all packets are there, so all of the input was read
			b.Put(c[1][0], p.Rank(0).Input().Chunk(0, 1), rank.Input().Chunk(0, 1))
			b.Signal(c[1][0])
		} else {
			b.Wait(c[0][1])
		}
	}
	return p
}

// Pulled is an all-gather whose ranks read the others' inputs, block by block.
func Pulled(n int) *plan.Plan {
	p := plan.New("pulled", plan.AllGather(n, 1), plan.Options{})
	c := Ends(p, n, p.Memory)
	for r := range n {
		b, out := p.Rank(r).Block(0), p.Rank(r).Output()
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
		b.Copy(out.Chunk(r, 1), p.Rank(r).Input().Chunk(0, 1))
		for i := 1; i < n; i++ {
			peer := (r + i) % n
			b.Get(c[r][peer], out.Chunk(peer, 1), p.Rank(peer).Input().Chunk(0, 1))
		}
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
	}
	return p
}

// OneShotApart is an all-reduce whose ranks read all inputs.
func OneShotApart(n int) *plan.Plan {
	p := plan.New("one-shot", plan.AllReduce(n, 1), plan.Options{})
	c := Ends(p, n, p.Memory)
	s := p.Switch(plan.Input, All(n)...)
	for r := range n {
		b := p.Rank(r).Block(0)
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
		b.SwitchReduce(s, p.Rank(r).Output().Chunk(0, n), 0)
		b.Signal(Others(c[r], r)...)
		b.Wait(Others(c[r], r)...)
	}
	return p
}

// TwoShotApart is an all-reduce whose ranks fold their chunk of all inputs, window by window, and read the others'
// chunks of the outputs a window behind.
func TwoShotApart(n int) *plan.Plan {
	p := plan.New("two-shot", plan.AllReduce(n, 1), plan.Options{})
	begun, folded, read := Ends(p, n, p.Memory), Ends(p, n, p.Memory), Ends(p, n, p.Memory)
	s := p.Switch(plan.Input, All(n)...)
	for r := range n {
		rank := p.Rank(r)
		out, ahead := rank.Output(), rank.Semaphore(2)
		folds, reads := rank.Block(0), rank.Block(1)
		folds.Signal(Others(begun[r], r)...)
		folds.Wait(Others(begun[r], r)...)
		folds.Loop(64<<10, 1, func() {
			folds.Acquire(ahead)
			folds.SwitchReduce(s, out.Chunk(r, 1), r)
			folds.Signal(Others(folded[r], r)...)
		})
		reads.Loop(64<<10, 1, func() {
			reads.Wait(Others(folded[r], r)...)
			for i := 1; i < n; i++ {
				peer := (r + i) % n
				reads.Get(read[r][peer], out.Chunk(peer, 1), p.Rank(peer).Output().Chunk(peer, 1))
			}
			reads.Release(ahead)
		})
		reads.Signal(Others(read[r], r)...)
		reads.Wait(Others(read[r], r)...)
	}
	return p
}

// All is all ranks.
func All(n int) (all []int) {
	for r := range n {
		all = append(all, r)
	}
	return all
}

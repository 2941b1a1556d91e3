// Package program is a plan at one size of message: every block's operations with the ranges, channels and
// counters that they touch. The verifier, the simulator and the executors run programs.
package program

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// Shape is the size of a message, in any unit of length.
type Shape struct {
	Chunk int // length of a chunk
	Align int // groups split operations at multiples of it
	// Alias makes the input and the output of ranks that have both one memory, as a call in place does.
	Alias bool
	// Window is the length of a pipeline's window; nil takes its bytes.
	Window func(unit uint64) int
}

// Program is a plan at one size of message. What it has of its plan it shares.
type Program struct {
	File   *spec.File
	Shape  Shape
	Blocks []Block // those of rank 0, and so on
	First  []int   // the first block of each rank, and how many there are
	Ends   []End   // channel ends of all ranks, those of memory first on each
	// Memories are lengths of buffers: of rank r those numbered from Buffers * r on. Input and output of a plan in
	// place are parts of one.
	Memories   []int
	Semaphores []int // values before the first launch, of all ranks

	endsOf  [][3]int // the first end of each rank and type
	semsOf  []int    // the first semaphore of each rank
	offsets [][Buffers]place
}

// Buffers is how many buffers a rank has.
const Buffers = 3

type place struct{ memory, at int }

// Block is the program of a thread block.
type Block struct {
	Rank, ID int
	Steps    []Step
}

// Step is an operation, of a pipeline one in one window.
type Step struct {
	Op *spec.Op
	// Counters are the channel ends that it signals, on which it waits, or into which it pushes transfers; of
	// operations on semaphores those.
	Counters  []int
	Src, Dst  []Range
	Site      spec.Site
	Iteration int
}

// Range is a part of a memory.
type Range struct {
	Memory   int
	From, To int
	Slot     bool // packets, which take twice the length; From and To are those of the data
}

// Rank is whose memory it is.
func (r Range) Rank() int { return r.Memory / Buffers }

// Scratch says whether it is in scratch.
func (r Range) Scratch() bool { return r.Memory%Buffers == int(spec.Scratch) }

// Bytes is the range that it takes in its memory.
func (r Range) Bytes() (from, to int) {
	if r.Slot {
		return 2 * r.From, 2 * r.To
	}
	return r.From, r.To
}

// Name says which chunks a range is.
func (p *Program) Name(r Range) string {
	c := p.Shape.Chunk
	from, to := r.From/c, (r.To-1)/c
	text := fmt.Sprintf("chunk %d", from)
	if to > from {
		text = fmt.Sprintf("chunks %d-%d", from, to)
	}
	if r.From%c != 0 || r.To%c != 0 {
		text = "a part of " + text
	}
	if r.Slot {
		text = "the packets of " + text
	}
	return fmt.Sprintf("%s of the %v of rank %d", text, spec.Buffer(r.Memory%Buffers), r.Rank())
}

// End is a rank's end of a channel. Peer is the other end, or -1 where the peer has none.
type End struct {
	Rank, To, ID int
	Type         spec.ChannelType
	Peer         int
}

// Of makes the program of a plan that [spec.File.Check] passes.
func Of(f *spec.File, shape Shape) *Program {
	return of(f, shape, func(int) bool { return true })
}

// OfRank makes it of the blocks of one rank alone.
func OfRank(f *spec.File, shape Shape, rank int) *Program {
	return of(f, shape, func(r int) bool { return r == rank })
}

func of(f *spec.File, shape Shape, wanted func(rank int) bool) *Program {
	if shape.Window == nil {
		shape.Window = func(unit uint64) int { return int(unit) }
	}
	p := &Program{File: f, Shape: shape, First: []int{0}}
	p.ends()
	for r := range f.Ranks {
		p.memories(r)
		p.semsOf = append(p.semsOf, len(p.Semaphores))
		p.Semaphores = append(p.Semaphores, f.Ranks[r].Semaphores...)
	}
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			if wanted(r) {
				p.Blocks = append(p.Blocks, p.block(r, b))
			}
		}
		p.First = append(p.First, len(p.Blocks))
	}
	return p
}

// ends numbers channel ends and pairs the k-th of a rank to a peer with the k-th of the peer to it.
func (p *Program) ends() {
	type pair struct {
		from, to int
		of       spec.ChannelType
	}
	to := make(map[pair][]int)
	for r := range p.File.Ranks {
		var first [3]int
		for _, t := range []spec.ChannelType{spec.Memory, spec.Port} {
			first[t] = len(p.Ends)
			for id, peer := range p.File.Ranks[r].Peers(t) {
				key := pair{r, peer, t}
				to[key] = append(to[key], len(p.Ends))
				p.Ends = append(p.Ends, End{r, peer, id, t, -1})
			}
		}
		p.endsOf = append(p.endsOf, first)
	}
	for key, ends := range to {
		back := to[pair{key.to, key.from, key.of}]
		for k, e := range ends[:min(len(ends), len(back))] {
			p.Ends[e].Peer = back[k]
		}
	}
}

// memories lays out a rank's buffers.
func (p *Program) memories(r int) {
	rank, c := &p.File.Ranks[r], p.Shape.Chunk
	in, out := rank.Input*c, rank.Output*c
	scratch := rank.Scratch * c
	if p.File.Protocol == spec.LL {
		scratch *= 2
	}
	at := [Buffers]place{{Buffers * r, 0}, {Buffers*r + 1, 0}, {Buffers*r + 2, 0}}
	if p.File.InPlace {
		switch p.File.Collective {
		case spec.AllReduce, spec.AllToAll:
			in = max(in, out)
			out = 0
			at[spec.Output] = at[spec.Input]
		case spec.AllGather:
			at[spec.Input] = place{Buffers*r + 1, r * in}
			out, in = max(out, r*in+in), 0
		case spec.ReduceScatter:
			at[spec.Output] = place{Buffers * r, r * out}
			in, out = max(in, r*out+out), 0
		}
	}
	if p.Shape.Alias && in > 0 && out > 0 {
		in, out = max(in, out), 0
		at[spec.Output] = at[spec.Input]
	}
	p.offsets = append(p.offsets, at)
	p.Memories = append(p.Memories, in, out, scratch)
}

// Whole is the range of a whole buffer of a rank.
func (p *Program) Whole(rank int, b spec.Buffer) Range {
	return p.local(rank, b, 0, p.File.Ranks[rank].Size(b)*p.Shape.Chunk)
}

func (p *Program) local(rank int, b spec.Buffer, from, to int) Range {
	o := p.offsets[rank][b]
	return Range{Memory: o.memory, From: o.at + from, To: o.at + to}
}

func (p *Program) block(r, b int) Block {
	block := &p.File.Ranks[r].Blocks[b]
	all := Block{Rank: r, ID: b, Steps: make([]Step, 0, len(block.Ops))}
	for i := range block.Ops {
		op := &block.Ops[i]
		site := spec.Site{Rank: r, Block: b, Op: i, Inner: -1}
		if op.Kind != spec.Pipeline {
			all.Steps = append(all.Steps, p.step(op, site, -1, 0))
			continue
		}
		n, window := p.Iterations(op)
		for t := range n {
			for k := range op.Ops {
				site.Inner = k
				all.Steps = append(all.Steps, p.step(&op.Ops[k], site, t, window))
			}
		}
	}
	return all
}

// Iterations is how many windows a pipeline has, and their length.
func (p *Program) Iterations(op *spec.Op) (n, window int) {
	window = p.Shape.Window(op.Unit)
	return (op.Chunks*p.Shape.Chunk + window - 1) / window, window
}

// step resolves an operation; iteration -1 is no pipeline's.
func (p *Program) step(op *spec.Op, site spec.Site, iteration, window int) Step {
	s := Step{Op: op, Site: site, Iteration: max(iteration, 0)}
	rank := &p.File.Ranks[site.Rank]
	block := &rank.Blocks[site.Block]
	if op.Via != spec.Switched && op.Channels != nil {
		first := p.endsOf[site.Rank][op.Via]
		for _, id := range op.Channels {
			s.Counters = append(s.Counters, first+block.Channel(op.Via, id))
		}
	}
	for _, id := range op.Semaphores {
		s.Counters = append(s.Counters, p.semsOf[site.Rank]+id)
	}
	resolve := func(all []spec.Place, source bool) (ranges []Range) {
		for i, place := range all {
			from, to := p.part(op, place.Size, iteration, window)
			from, to = place.Index*p.Shape.Chunk+from, place.Index*p.Shape.Chunk+to
			slot := op.Slot(source, i)
			add := func(owner int, b spec.Buffer) {
				r := p.local(owner, b, from, to)
				r.Slot = slot
				ranges = append(ranges, r)
			}
			switch place.At {
			case spec.RemoteBuffer:
				remote := rank.Remotes[block.Remote(op.Via, place.ID)]
				add(remote.Rank, remote.Buffer)
			case spec.Members:
				channel := rank.Switches[block.Channel(spec.Switched, place.ID)]
				for _, member := range channel.Ranks {
					add(member, channel.Buffer)
				}
			default:
				add(site.Rank, place.Buffer)
			}
		}
		return ranges
	}
	s.Src, s.Dst = resolve(op.Src, true), resolve(op.Dst, false)
	return s
}

// part is the range of an operation's n chunks that a block does in a window.
func (p *Program) part(op *spec.Op, n, iteration, window int) (from, to int) {
	length := n * p.Shape.Chunk
	from, to = op.Group.Part(length / p.Shape.Align)
	from, to = from*p.Shape.Align, to*p.Shape.Align
	if iteration < 0 || op.Kind.Packets() {
		return from, to
	}
	at := min(from+iteration*window, to)
	return at, min(at+window, to)
}

// Paired says whether each destination gets its own source. Otherwise all get the fold of all sources.
func (s *Step) Paired() bool {
	switch s.Op.Kind {
	case spec.Put, spec.PutWithSignal, spec.PutWithSignalAndFlush, spec.Get, spec.PutPackets:
		return true
	}
	return false
}

// Folds is the sources in the order in which the operation folds them: packets come before local data.
func (s *Step) Folds() []Range {
	switch s.Op.Kind {
	case spec.ReducePackets, spec.ReduceSendPackets, spec.ReduceCopyPackets, spec.ReduceCopySendPackets:
		return append(slices.Clone(s.Src[1:]), s.Src[0])
	}
	return s.Src
}

// Signalled is the counter to which a step adds through one of its counters, or -1. Counters are those of channel ends
// and, behind them, of semaphores.
func (p *Program) Signalled(s *Step, c int) int {
	switch s.Op.Kind {
	case spec.Signal, spec.RelaxedSignal, spec.PutWithSignal, spec.PutWithSignalAndFlush:
		return p.Ends[c].Peer
	case spec.SemRelease:
		return len(p.Ends) + c
	}
	return -1
}

// Awaited is the counter on which a step waits through one of its counters, or -1.
func (p *Program) Awaited(s *Step, c int) int {
	switch s.Op.Kind {
	case spec.Wait, spec.RelaxedWait:
		return c
	case spec.SemAcquire:
		return len(p.Ends) + c
	}
	return -1
}

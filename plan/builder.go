package plan

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/weftgo/weft/plan/spec"
)

// Buffers of a rank.
const (
	Input   = spec.Input
	Output  = spec.Output
	Scratch = spec.Scratch
)

// Reductions.
const (
	Sum = spec.Sum
	Min = spec.Min
	Max = spec.Max
)

// Protocols.
const (
	Simple = spec.Simple
	LL     = spec.LL
)

// Collective is what a plan computes, and how many chunks the buffers of its ranks have.
type Collective struct {
	name    string
	ranks   int
	in, out int
	sources []int // ranks that have an input; nil: all
}

// AllReduce has factor chunks for each rank in every input and output.
func AllReduce(ranks, factor int) Collective {
	return Custom(spec.AllReduce, ranks, ranks*factor, ranks*factor)
}

// AllGather has factor chunks in an input.
func AllGather(ranks, factor int) Collective {
	return Custom(spec.AllGather, ranks, factor, ranks*factor)
}

// ReduceScatter has factor chunks in an output.
func ReduceScatter(ranks, factor int) Collective {
	return Custom(spec.ReduceScatter, ranks, ranks*factor, factor)
}

// AllToAll has factor chunks for each pair of ranks.
func AllToAll(ranks, factor int) Collective {
	return Custom(spec.AllToAll, ranks, ranks*factor, ranks*factor)
}

// SendRecv gives every rank the input of another one.
func SendRecv(ranks, factor int) Collective {
	return Custom(spec.SendRecv, ranks, factor, factor)
}

// Broadcast gives all ranks the input of the root, which alone has one, of so many chunks.
func Broadcast(ranks, root, chunks int) Collective {
	c := Custom(spec.Broadcast, ranks, chunks, chunks)
	c.sources = []int{root}
	return c
}

// Custom has any name and chunks. What it computes is not defined, unless the name is that of a collective.
func Custom(name string, ranks, in, out int) Collective {
	return Collective{name: name, ranks: ranks, in: in, out: out}
}

// input is the chunks of a rank's input.
func (c *Collective) input(rank int) int {
	if c.sources != nil && !slices.Contains(c.sources, rank) {
		return 0
	}
	return c.in
}

// Options are what a plan has beside its operations. Zero values take the defaults.
type Options struct {
	Protocol      spec.Protocol // Simple, or LL for plans with packets
	InPlace       bool          // operands are in place
	Threads       int           // of a block: 1024
	DoubleScratch bool          // launches take halves of scratch in turn
	ReuseScratch  bool          // plans of an executor may share scratch
	Alignment     int           // bytes by which groups split: 16
	MinBytes      uint64        // of a message
	MaxBytes      uint64
	Reduction     spec.Reduction // of all operations that reduce: Sum
	// Explicit leaves operations as they are: the builder neither fuses them nor places nops.
	Explicit bool
}

// Plan is a plan in the making. The first misuse stays, and [Plan.Build] returns it.
type Plan struct {
	collective Collective
	options    Options
	file       *spec.File
	ranks      []*Rank
	err        error // the first misuse
	before     int   // how many operations were written before it
	number     int   // and how many are
}

// New begins a plan.
func New(name string, c Collective, o Options) *Plan {
	p := &Plan{collective: c, options: o}
	p.file = &spec.File{
		Name: name, Collective: c.name, Protocol: o.Protocol, InPlace: o.InPlace, ReuseResources: o.ReuseScratch,
		Threads: o.Threads, DoubleScratch: o.DoubleScratch, Alignment: o.Alignment, MinBytes: o.MinBytes,
		MaxBytes: o.MaxBytes,
	}
	if o.Protocol == "" {
		p.file.Protocol = Simple
	}
	if o.Threads == 0 {
		p.file.Threads = spec.DefaultThreads
	}
	if o.Alignment == 0 {
		p.file.Alignment = spec.DefaultAlignment
	}
	if o.MaxBytes == 0 {
		p.file.MaxBytes = spec.DefaultMaxBytes
	}
	if o.Reduction == spec.NoReduction {
		p.options.Reduction = Sum
	}
	p.check()
	if c.ranks < 1 || c.in < 0 || c.out < 0 {
		p.misuse("%d ranks with inputs of %d chunks and outputs of %d", c.ranks, c.in, c.out)
	}
	for _, r := range c.sources {
		if r < 0 || r >= c.ranks {
			p.misuse("root %d of %d ranks", r, c.ranks)
		}
	}
	for i := range max(c.ranks, 1) {
		p.ranks = append(p.ranks, &Rank{plan: p, id: i})
	}
	return p
}

// check refuses options that no plan can have.
func (p *Plan) check() {
	switch f := p.file; {
	case f.Protocol != Simple && f.Protocol != LL:
		p.misuse("protocol %q; want Simple or LL", f.Protocol)
	case f.Threads < 1:
		p.misuse("blocks of %d threads; want at least 1", f.Threads)
	case f.Alignment < 1:
		p.misuse("an alignment of %d bytes; want at least 1", f.Alignment)
	case f.MinBytes > f.MaxBytes:
		p.misuse("messages from %d to %d bytes are none", f.MinBytes, f.MaxBytes)
	case p.options.Reduction > Max:
		p.misuse("no reduction has number %d", uint8(p.options.Reduction))
	}
}

// here is the file and line outside this package.
func here() string {
	var at [16]uintptr
	frames := runtime.CallersFrames(at[:runtime.Callers(2, at[:])])
	for {
		f, more := frames.Next()
		inside := strings.HasPrefix(f.Function, "github.com/weftgo/weft/plan.") && !strings.HasSuffix(f.File, "_test.go")
		if !inside || !more {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
	}
}

// misuse keeps the first one.
func (p *Plan) misuse(format string, args ...any) {
	if p.err == nil {
		p.before = p.number
		p.err = fmt.Errorf("plan: %s: %s", here(), fmt.Sprintf(format, args...))
	}
}

// Rank is what one rank does.
type Rank struct {
	plan       *Plan
	id         int
	scratch    int
	blocks     []*Block
	ends       [3][]int // the peer of each channel, by type
	switches   []spec.Switch
	remotes    []spec.Remote
	semaphores []int
	barriers   int
	types      []spec.ChannelType // in order of first use
}

// Rank is a rank of the plan.
func (p *Plan) Rank(id int) *Rank {
	if id < 0 || id >= len(p.ranks) {
		p.misuse("rank %d of %d", id, len(p.ranks))
		return p.ranks[0]
	}
	return p.ranks[id]
}

// Buffer is a part of a rank's input, output or scratch.
type Buffer struct {
	rank     *Rank
	of       spec.Buffer
	from, to int
}

// Input is what the rank gives.
func (r *Rank) Input() Buffer { return Buffer{r, Input, 0, r.plan.collective.input(r.id)} }

// Output is what the rank gets.
func (r *Rank) Output() Buffer { return Buffer{r, Output, 0, r.plan.collective.out} }

// Scratch is n more chunks of scratch.
func (r *Rank) Scratch(n int) Buffer {
	if n < 0 {
		r.plan.misuse("%d chunks of scratch", n)
		n = 0
	}
	r.scratch += n
	return Buffer{r, Scratch, r.scratch - n, r.scratch}
}

// Chunk is n chunks of a buffer, from one on.
type Chunk struct {
	rank *Rank
	spec.Place
}

// Chunk is n chunks from the given one on.
func (b Buffer) Chunk(at, n int) Chunk {
	if b.rank == nil {
		return Chunk{} // which no operation takes
	}
	if at < 0 || n < 0 || at > b.to-b.from-n {
		b.rank.plan.misuse("%d chunks from chunk %d on, in a buffer of %d", n, at, b.to-b.from)
		at, n = 0, 0
	}
	return Chunk{b.rank, spec.Place{Buffer: b.of, Index: b.from + at, Size: n}}
}

// Channel is a rank's end of a channel to another. The k-th from a to b and the k-th from b to a, of one type, are two
// ends of one.
type Channel struct {
	from, to *Rank
	via      spec.ChannelType
	id       int
}

// Memory is a new channel through memory that is mapped.
func (p *Plan) Memory(from, to int) *Channel { return p.channel(spec.Memory, from, to) }

// Port is a new channel through a proxy, which moves data while blocks go on.
func (p *Plan) Port(from, to int) *Channel { return p.channel(spec.Port, from, to) }

func (p *Plan) channel(via spec.ChannelType, from, to int) *Channel {
	if from == to {
		p.misuse("a channel from rank %d to itself", from)
	}
	a, b := p.Rank(from), p.Rank(to)
	if !slices.Contains(a.types, via) {
		a.types = append(a.types, via)
	}
	a.ends[via] = append(a.ends[via], b.id)
	return &Channel{a, b, via, len(a.ends[via]) - 1}
}

// Switch is a channel to one buffer of several ranks at once.
type Switch struct {
	buffer spec.Buffer
	ids    map[*Rank]int
}

// Switch is a new channel to a buffer of the given ranks.
func (p *Plan) Switch(buffer spec.Buffer, ranks ...int) *Switch {
	s := &Switch{buffer, make(map[*Rank]int)}
	for _, id := range ranks {
		r := p.Rank(id)
		if _, twice := s.ids[r]; twice {
			p.misuse("rank %d twice in a switch channel", id)
			continue
		}
		s.ids[r] = len(r.switches)
		r.switches = append(r.switches, spec.Switch{Buffer: buffer, Ranks: slices.Clone(ranks)})
	}
	return s
}

// Semaphore counts among the blocks of a rank.
type Semaphore struct {
	rank *Rank
	id   int
}

// Semaphore is a new semaphore, with its value before the first launch.
func (r *Rank) Semaphore(value int) *Semaphore {
	if value < 0 {
		r.plan.misuse("a semaphore of value %d", value)
		value = 0
	}
	r.semaphores = append(r.semaphores, value)
	return &Semaphore{r, len(r.semaphores) - 1}
}

// Block is a thread block of a rank.
func (r *Rank) Block(id int) *Block {
	if id < 0 || id > 1<<16 {
		r.plan.misuse("block %d", id)
		id = 0
	}
	for len(r.blocks) <= id {
		r.blocks = append(r.blocks, &Block{program: &program{rank: r}})
	}
	return r.blocks[id]
}

// Barrier is a barrier of several blocks of the rank.
func (r *Rank) Barrier(blocks ...*Block) {
	if len(blocks) == 0 {
		r.plan.misuse("a barrier of no blocks")
	}
	for i, b := range blocks {
		if b == nil || b.program == nil {
			r.plan.misuse("block %d of a barrier is nil", i)
			return
		}
		if b.rank != r || slices.ContainsFunc(blocks[:i], func(o *Block) bool { return o.program == b.program }) {
			r.plan.misuse("block %d of a barrier is another rank's, or there already", i)
			return
		}
	}
	for _, b := range blocks {
		b.add(spec.Op{Kind: spec.Barrier, Barrier: r.barriers, Blocks: len(blocks)})
	}
	r.barriers++
}

// Group calls a function for each block, whose operations on data are then a part of the whole.
func (r *Rank) Group(blocks []*Block, each func(b *Block)) {
	if each == nil {
		r.plan.misuse("a group without a function")
		return
	}
	for i, b := range blocks {
		if b == nil || b.program == nil {
			r.plan.misuse("block %d of a group is nil", i)
			return
		}
		each(b.Part(i, len(blocks)))
	}
}

// Block is a list of operations in the making.
type Block struct {
	*program
	group spec.Group
}

// program is what all views of a block share.
type program struct {
	rank     *Rank
	ops      []recorded
	loop     *recorded // the pipeline that is open
	channels []spec.Uses
	remotes  []spec.Uses
}

// recorded is an operation and where it was written.
type recorded struct {
	spec.Op
	line
	inner []recorded
}

// line is where an operation was written, and how many were before it in the plan.
type line struct {
	at     string
	number int
}

// line is the next operation's.
func (p *Plan) line() line {
	p.number++
	return line{here(), p.number}
}

// Part is the block as the i-th of n that share operations on data.
func (b *Block) Part(i, n int) *Block {
	if i < 0 || i >= n {
		b.misuse("part %d of %d", i, n)
		return b
	}
	return &Block{b.program, spec.Group{ID: i, Size: n}}
}

func (b *Block) misuse(format string, args ...any) { b.rank.plan.misuse(format, args...) }

// add records an operation.
func (b *Block) add(op spec.Op) {
	r := recorded{Op: op, line: b.rank.plan.line()}
	if b.loop != nil {
		b.loop.inner = append(b.loop.inner, r)
		return
	}
	b.ops = append(b.ops, r)
}

// Loop records the operations of a function as a pipeline: they repeat for each window of unit bytes in n chunks.
func (b *Block) Loop(unit uint64, n int, body func()) {
	switch {
	case b.loop != nil:
		b.misuse("a loop in a loop")
		return
	case unit < 1 || n < 1:
		b.misuse("a loop over %d chunks by %d bytes", n, unit)
		return
	case body == nil:
		b.misuse("a loop without a function")
		return
	}
	b.loop = &recorded{Op: spec.Op{Kind: spec.Pipeline, Unit: unit, Chunks: n}, line: b.rank.plan.line()}
	body()
	b.ops = append(b.ops, *b.loop)
	b.loop = nil
}

// Nop is a barrier of the block's threads. The builder places those that a plan needs.
func (b *Block) Nop() { b.add(spec.Op{Kind: spec.Nop}) }

// Signal says to the other ends of channels what the block has done.
func (b *Block) Signal(channels ...*Channel) { b.sync(spec.Signal, channels) }

// Wait waits for a signal of each channel.
func (b *Block) Wait(channels ...*Channel) { b.sync(spec.Wait, channels) }

// RelaxedSignal is a signal that publishes no data.
func (b *Block) RelaxedSignal(channels ...*Channel) { b.sync(spec.RelaxedSignal, channels) }

// RelaxedWait waits for signals, after which no data needs to be visible.
func (b *Block) RelaxedWait(channels ...*Channel) { b.sync(spec.RelaxedWait, channels) }

// Flush waits until ports have read the sources of what was put into them.
func (b *Block) Flush(channels ...*Channel) { b.sync(spec.Flush, channels) }

func (b *Block) sync(kind spec.Kind, channels []*Channel) {
	if len(channels) == 0 {
		b.misuse("no channel")
	}
	for _, c := range channels {
		if id, ok := b.channel(c); ok {
			b.add(spec.Op{Kind: kind, Via: c.via, Channels: []int{id}})
		}
	}
}

// channel is the block's number of a channel.
func (b *Block) channel(c *Channel) (id int, ok bool) {
	if c == nil || c.from != b.rank {
		b.misuse("the channel is not rank %d's", b.rank.id)
		return 0, false
	}
	return spec.Use(&b.channels, c.via, c.id), true
}

// Acquire takes one of each semaphore.
func (b *Block) Acquire(all ...*Semaphore) { b.semaphores(spec.SemAcquire, all) }

// Release adds one to each semaphore.
func (b *Block) Release(all ...*Semaphore) { b.semaphores(spec.SemRelease, all) }

func (b *Block) semaphores(kind spec.Kind, all []*Semaphore) {
	op := spec.Op{Kind: kind}
	for _, s := range all {
		if s == nil || s.rank != b.rank {
			b.misuse("the semaphore is not rank %d's", b.rank.id)
			return
		}
		op.Semaphores = append(op.Semaphores, s.id)
	}
	if op.Semaphores == nil {
		b.misuse("no semaphore")
		return
	}
	b.add(op)
}

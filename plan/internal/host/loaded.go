package host

import (
	"context"
	"errors"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Loaded is a plan with its memory.
type Loaded struct {
	// Step, if a test sets it, is called before each operation of a block.
	Step func()

	engine *Engine
	plan   *launch.Plan
	number uint64
	window *weft.Window // counters; nil if the plan has no channels
	mail   *mailbox     // nil if no packets come from other hosts

	ends       []end
	first      int // the number of this rank's first channel end among those of all ranks
	semaphores []int
	before     int   // semaphores of the ranks before this one
	openings   []int // of each block: operations at the beginning that need not run
	closings   []int // and at the end, where ranks tell each other once that they have left
	closes     bool
	writers    []int // of each chunk of this rank's scratch: who writes packets there
	generation uint64

	scratch *scratch
	own     scratch

	sizes map[int]*rank // by bytes of a chunk
	last  *rank         // that ran last
}

// end is this rank's end of a channel.
type end struct {
	peer          int
	in, out       *channel.Counter // out is nil where the peer has no such end
	sent, awaited uint64           // signals

	link   *link // to a rank of another host, which has no counters
	signal int   // of the link's
	paired bool  // the peer has such an end
}

// come says whether there is a signal.
func (x *end) come() bool {
	if x.link != nil {
		return x.link.come(x.signal) > 0
	}
	return x.in.Load() > x.awaited
}

// take consumes a signal.
func (x *end) take() {
	if x.link != nil {
		x.link.taken[x.signal]++
		return
	}
	x.awaited++
}

// mostSizes is how many sizes of message a plan keeps programs for.
const mostSizes = 16

func newLoaded(ctx context.Context, e *Engine, p *launch.Plan) (*Loaded, error) {
	self := e.comm.Rank()
	l := &Loaded{engine: e, plan: p, number: numberOf(p.Key), sizes: make(map[int]*rank)}
	l.scratch = &l.own
	if p.File.ReuseResources {
		l.scratch = &e.shared
	}
	// Which ends there are does not depend on the size of a message.
	all := program.OfRank(p.File, program.Shape{Chunk: p.File.Alignment, Align: p.File.Alignment}, self).Ends
	first, count := make([]int, e.comm.Size()+1), make([]int, e.comm.Size())
	most := 0
	for _, x := range all {
		count[x.Rank]++
		most = max(most, count[x.Rank])
	}
	for r, n := range count {
		first[r+1] = first[r] + n
	}
	l.first = first[self]
	if most > 0 {
		var err error
		if l.window, err = e.comm.Alloc(ctx, most*channel.Stride); err != nil {
			return nil, err
		}
	}
	counter := func(i int) *channel.Counter {
		r := all[i].Rank
		return channel.CounterAt(l.window.Peer(r), (i-first[r])*channel.Stride)
	}
	signals := make([]int, e.comm.Size()) // by rank: channels to it so far
	for i := first[self]; i < first[self+1]; i++ {
		x := end{peer: all[i].To, paired: all[i].Peer >= 0}
		if e.far != nil && e.far.links[x.peer] != nil {
			signals[x.peer]++
			x.link, x.signal = e.far.links[x.peer], signals[x.peer]
		} else {
			x.in = counter(i)
			if x.paired {
				x.out = counter(all[i].Peer)
			}
		}
		l.ends = append(l.ends, x)
	}
	if e.far != nil {
		if err := e.far.claim(ctx, p.Name, 1+channelsOf(p.File)); err != nil {
			return nil, errors.Join(err, l.free())
		}
		var err error
		if l.mail, err = newMailbox(ctx, e.comm, p.File); err != nil {
			return nil, errors.Join(err, l.free())
		}
	}
	for r := range self {
		l.before += len(p.File.Ranks[r].Semaphores)
	}
	opening := openings(p.File)
	l.openings, l.closings = opening[self], make([]int, len(opening[self]))
	if e.far == nil {
		l.closings = closings(p.File, opening)[self]
		l.closes = slices.ContainsFunc(l.closings, func(n int) bool { return n > 0 })
	}
	l.writers = writersOf(p.File, self)
	l.begin()
	return l, nil
}

// begin makes all counts those of the communicator's generation, as if nothing had run.
func (l *Loaded) begin() {
	l.generation = l.engine.comm.Operations().Generation()
	var numbers channel.Sequence
	numbers.Begin(l.generation)
	for i := range l.ends {
		l.ends[i].sent, l.ends[i].awaited = numbers.Last(), numbers.Last()
	}
	l.semaphores = append(l.semaphores[:0], l.plan.File.Ranks[l.engine.comm.Rank()].Semaphores...)
}

// channelsOf is the most port channels from a rank of a plan to another one.
func channelsOf(f *spec.File) (most int) {
	for r := range f.Ranks {
		to := make(map[int]int)
		for _, peer := range f.Ranks[r].Peers(spec.Port) {
			to[peer]++
			most = max(most, to[peer])
		}
	}
	return most
}

// writersOf is the rank that writes packets to each chunk of a rank's scratch, or the rank itself.
func writersOf(f *spec.File, self int) []int {
	writers := make([]int, f.Ranks[self].Scratch)
	for i := range writers {
		writers[i] = self
	}
	for at, op := range f.All() {
		if at.Rank == self {
			continue
		}
		rank := &f.Ranks[at.Rank]
		block := &rank.Blocks[at.Block]
		for i, p := range op.Dst {
			if !op.Slot(false, i) {
				continue
			}
			mine := false
			switch p.At {
			case spec.RemoteBuffer:
				mine = rank.Remotes[block.Remote(op.Via, p.ID)].Rank == self
			case spec.Members:
				mine = slices.Contains(rank.Switches[block.Channel(spec.Switched, p.ID)].Ranks, self)
			}
			if !mine {
				continue
			}
			for c := p.Index; c < min(p.Index+p.Size, len(writers)); c++ {
				writers[c] = at.Rank
			}
		}
	}
	return writers
}

// Run implements [launch.Loaded].
func (l *Loaded) Run(ctx context.Context, s *weft.Stream, given *launch.Launch, refused error) error {
	name, r := l.plan.Name, l.engine.rounds
	if refused == nil && s != nil {
		refused = weft.Unsupportedf("%s: the host has no streams; pass none", name)
	}
	if refused == nil && given.Chunk >= 1<<chunkBits {
		refused = weft.Unsupportedf("%s: chunks of %d bytes; it takes fewer than 2^%d", name, given.Chunk, chunkBits)
	}
	if refused != nil {
		return r.AwaitCalls(ctx, name, r.Refuse(refused), refused, nil)
	}
	run := l.size(given.Chunk)
	run.begin(given)
	defer run.end()
	r.PutOperands(run.refer())
	r.Moves(max(given.In.Bytes(), given.Out.Bytes()))
	round := r.Open(callOf(given, l.number))
	if err := r.AwaitCalls(ctx, name, round, nil, nil); err != nil {
		return err
	}
	if err := l.launch(ctx, run, given, round); err != nil {
		return err
	}
	// If this rank was told of a failure meanwhile the others may have gone on without it, and what it has read may be
	// what they wrote later.
	if err := l.engine.comm.Operations().Begin(name); err != nil {
		return err
	}
	r.End()
	return nil
}

// RunOpened runs a launch that the owner of the engine's rounds has opened, in a round that has the operands: input and
// output. The owner looks for failures behind it, as Run does.
func (l *Loaded) RunOpened(ctx context.Context, given *launch.Launch, round uint64) error {
	run := l.size(given.Chunk)
	run.begin(given)
	defer run.end()
	return l.launch(ctx, run, given, round)
}

// launch runs what was opened in a round.
func (l *Loaded) launch(ctx context.Context, run *rank, given *launch.Launch, round uint64) error {
	e, name := l.engine, l.plan.Name
	if given.Chunk == 0 {
		return nil
	}
	if l.generation != e.comm.Operations().Generation() {
		l.begin()
	}
	if e.far != nil {
		if err := e.far.settle(ctx, name); err != nil {
			return err
		}
	}
	if err := run.prepare(ctx, round); err != nil {
		return err
	}
	if err := run.run(ctx); err != nil {
		return err
	}
	if err := run.rest(ctx); err != nil {
		return err
	}
	if l.closes {
		e.rounds.Leave()
		if err := e.rounds.AwaitLeft(ctx, name, round); err != nil {
			return err
		}
	}
	run.finish()
	return nil
}

// size is the program of chunks of so many bytes.
func (l *Loaded) size(chunk int) *rank {
	if l.last != nil && l.last.program.Shape.Chunk == chunk {
		return l.last
	}
	if l.last = l.sizes[chunk]; l.last != nil {
		return l.last
	}
	if len(l.sizes) == mostSizes {
		clear(l.sizes)
	}
	l.last = newRank(l, chunk)
	l.sizes[chunk] = l.last
	return l.last
}

// Close implements [launch.Loaded].
func (l *Loaded) Close() error {
	e := l.engine
	if e.loaded[l.number] != l {
		return nil
	}
	delete(e.loaded, l.number)
	return errors.Join(l.own.close(), l.free())
}

func (l *Loaded) free() (err error) {
	if l.mail != nil {
		err = l.mail.close()
	}
	if l.window != nil {
		err = errors.Join(err, l.window.Close())
	}
	return err
}

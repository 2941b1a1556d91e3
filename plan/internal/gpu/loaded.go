package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/spec"
)

// loaded is a plan on a rank.
type loaded struct {
	e       *Engine
	plan    *launch.Plan
	program *program
	memory  *cuda.Memory // the program, which no launch changes
	words   *device.Words
	unit    int // the greatest power of two, of 16 at most, that divides all lengths but a chunk's

	inputs, outputs bool    // some rank reaches the input, or the output, of another one of its host
	partial         [2]bool // some ranks have no input, or no output

	channels channels // of the engine, with the plan's

	generation uint64           // of the launch before
	contexts   []*launchContext // each for larger chunks than the one before
	places     map[placement]bool
	threads    shape
}

// shape is how many threads the blocks of launches of a chunk size have.
type shape struct{ chunk, threads int }

// newLoaded makes a program of a plan, and uploads it.
func newLoaded(e *Engine, p *launch.Plan) (l *loaded, err error) {
	l = &loaded{e: e, plan: p, places: make(map[placement]bool), generation: e.comm.Operations().Generation()}
	if l.program, err = encode(p, e.comm.Rank(), e.comm.Host); err != nil {
		return l, err
	}
	if e.far != nil {
		if l.channels, err = e.far.claimed.with(p.Name, l.program.between); err != nil {
			return l, err
		}
	}
	l.inputs, l.outputs = reachedBy(p.File, e.comm.Host)
	for r := range p.File.Ranks {
		rank := &p.File.Ranks[r]
		l.partial[0], l.partial[1] = l.partial[0] || rank.Input == 0, l.partial[1] || rank.Output == 0
	}
	if l.words = e.words[p.Key]; l.words == nil {
		l.words = &device.Words{Operation: l.operation}
		e.words[p.Key] = l.words
	}
	l.unit = unitOf(p.File)
	gpu := e.comm.Device().Context()
	if l.memory, err = gpu.Alloc(len(l.program.code)); err != nil {
		return l, err
	}
	return l, gpu.Upload(l.memory.Pointer(), l.program.code)
}

// operation names an operation by its number in a record.
func (l *loaded) operation(n uint32) string {
	if n == 0 || int(n) > len(l.program.sites) {
		return l.plan.Name
	}
	return l.plan.At(l.program.sites[n-1])
}

// unitOf is the greatest power of two, of a vector's bytes at most, that divides where groups and windows split.
func unitOf(f *spec.File) int {
	unit := uint64(vectorBytes | f.Alignment)
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			for _, op := range f.Ranks[r].Blocks[b].Ops {
				if op.Kind == spec.Pipeline {
					unit |= op.Unit
				}
			}
		}
	}
	return int(unit & -unit)
}

// Run enqueues a launch. A rank on a GPU cannot refuse on behalf of others, whose kernels may be running: a launch that
// it refuses has not been made, and the others wait for it until the deadline.
func (l *loaded) Run(ctx context.Context, s *weft.Stream, x *launch.Launch, refused error) error {
	if refused != nil || x.Chunk == 0 {
		return refused
	}
	if err := l.renew(ctx, s); err != nil {
		return err
	}
	t := x.DType
	if len(l.plan.Reductions) == 0 {
		t = moving
	}
	f, err := l.e.kernel(ctx, l.plan, s, t)
	if err != nil {
		return err
	}
	o, err := l.place(ctx, x)
	if err != nil {
		return err
	}
	c, err := l.context(ctx, s, x.Chunk, len(o.regions) > 0 && (l.staged(&o, 0) || !o.one && l.staged(&o, 1)))
	if err != nil {
		return err
	}
	stream, err := c.lane.Enter(ctx, l.plan.Name, s)
	if err != nil {
		return err
	}
	k, err := c.launch(f)
	if err != nil {
		return err
	}
	copies := l.prepare(c, k.Args, x, &o)
	k.SetBlock(cuda.Dim{X: uint32(l.blockThreads(x.Chunk))})
	err = cmp.Or(enqueue(stream, copies.before), c.lane.Start(stream, k.Launch), enqueue(stream, copies.after))
	if err != nil {
		return l.e.comm.Operations().Fail(fmt.Errorf("%s: %w", l.plan.Name, err))
	}
	return c.lane.Finish(ctx, s)
}

// renew has ranks agree, in the first launch of a generation, on what they have: see [Engine.agree].
func (l *loaded) renew(ctx context.Context, s *weft.Stream) error {
	generation := l.e.comm.Operations().Generation()
	if l.generation == generation {
		return nil
	}
	if capturing, err := enginegpu.Capturing(l.e.stream(s)); err != nil || capturing {
		return err // such a launch is refused later
	}
	least, err := l.e.agree(ctx, l.plan.Name, len(l.contexts))
	if err != nil {
		return err
	}
	if released, err := l.keep(least); err != nil || !released {
		return err
	}
	clear(l.places)
	l.generation = generation
	return nil
}

// prepare sets the arguments of a launch.
func (l *loaded) prepare(c *launchContext, a *planArgs, x *launch.Launch, o *operands) copies {
	align := l.plan.File.Alignment
	a.chunk, a.units, a.align = uint64(x.Chunk), uint64(x.Chunk/align), uint32(align)
	all := c.point(a, x, o)
	a.unit, a.whole = l.unitAt(a), 0
	if a.unit == vectorBytes {
		a.whole = 1
	}
	if a.switches = 0; l.program.switches && l.e.comm.Device().Multicast() {
		if a.switches = 2; l.e.exact {
			a.switches = 1
		}
	}
	return all
}

// unitAt is the greatest power of two, of a vector's bytes at most, that divides every address and length of a launch.
func (l *loaded) unitAt(a *planArgs) uint32 {
	all := uint64(l.unit) | a.chunk
	for r := range l.plan.File.Ranks {
		all |= a.in[r] | a.out[r]
	}
	return uint32(all & -all)
}

// leastThreads is how many threads a block has at least, where the plan has so many: what a launch does before its
// first operation takes them.
const leastThreads, mostThreads, warp = 64, 512, 32

// blockThreads is how many threads blocks have: no more than their largest operation has vectors.
func (l *loaded) blockThreads(chunk int) int {
	if l.threads.chunk == chunk {
		return l.threads.threads
	}
	n := min(max(leastThreads, l.program.operands, l.program.vectors), 4*leastThreads)
	for _, p := range l.program.parts {
		n = max(n, min((p.chunks*chunk/p.blocks+vectorBytes-1)/vectorBytes, mostThreads))
	}
	n = min((n+warp-1)/warp*warp, max(warp, min(l.plan.File.Threads, mostThreads)/warp*warp))
	l.threads = shape{chunk, n}
	return n
}

// mostShared is the most bytes of shared memory that programs take; longer ones stay where they are.
const mostShared = 32 << 10

// own is the size of an Own of program.cuh.
const own = 16

// kept is the bytes that a block of the program keeps in the GPU's memory, and shared those of shared memory, or 0.
func (p *program) kept() (kept, shared int) {
	kept = own + 2*8*p.uses
	if shared = 2*8*p.uses + p.operands*entryBytes + p.vectors*vectorBytes; shared <= mostShared {
		return kept, shared
	}
	return (kept + (p.operands+mostFirst)*entryBytes + vectorBytes - 1) &^ (vectorBytes - 1), 0
}

// context is the one that launches of a chunk size use: the last, or one for larger chunks. All ranks make it for the
// same launch.
func (l *loaded) context(ctx context.Context, s *weft.Stream, chunk int, staged bool) (*launchContext, error) {
	capacity := 0
	if n := len(l.contexts); n > 0 {
		last := l.contexts[n-1]
		if capacity = last.chunk; (last.staged || !staged) && (chunk <= capacity || l.program.fixed() && !staged) {
			return last, nil
		}
		staged = staged || last.staged
		if chunk > capacity {
			chunk = max(chunk, capacity+capacity/2)
		}
	}
	if capturing, err := enginegpu.Capturing(l.e.stream(s)); err != nil || capturing {
		if err == nil {
			err = weft.Unsupportedf("%s: there is no memory yet for chunks of %d bytes, and a capture cannot wait for it; "+
				"run the plan once with the largest operands before", l.plan.Name, chunk)
		}
		return nil, err
	}
	const page = 4 << 10
	capacity = (max(chunk, capacity) + page - 1) &^ (page - 1)
	c, err := newContext(ctx, l, capacity, staged)
	if err == nil {
		l.contexts = append(l.contexts, c)
	}
	return c, err
}

// fixed says whether no rank's memory depends on the size of messages.
func (p *program) fixed() bool { return p.data == 0 && p.packets == 0 && !p.crosses }

// Close gives up what the plan has. No rank runs it any more.
func (l *loaded) Close() error {
	_, err := l.release()
	return err
}

// release is Close that says whether it was: not while work runs.
func (l *loaded) release() (released bool, err error) {
	if released, err = l.keep(0); !released {
		return false, err
	}
	l.e.plans = slices.DeleteFunc(l.e.plans, func(o *loaded) bool { return o == l })
	return true, errors.Join(err, l.close())
}

// keep gives up all contexts but the first n, unless work runs.
func (l *loaded) keep(n int) (released bool, err error) {
	var errs []error
	for len(l.contexts) > n {
		last := len(l.contexts) - 1
		c := l.contexts[last]
		if released, err = c.lane.Close(); !released {
			return false, err
		}
		errs = append(errs, err)
		if err := l.e.far.leave(); err != nil {
			return false, err
		}
		errs = append(errs, c.far.close())
		l.contexts = l.contexts[:last]
	}
	return true, errors.Join(errs...)
}

// close gives up the program.
func (l *loaded) close() error {
	if l.memory == nil {
		return nil
	}
	err := l.memory.Close()
	l.memory = nil
	return err
}

// launchContext is the memory of launches of chunks up to a size, and the launches.
type launchContext struct {
	l        *loaded
	chunk    int
	lane     *enginegpu.Lane
	launches map[*cuda.Function]enginegpu.Launch[planArgs]
	initial  planArgs // what does not change from call to call; the first launch's argument has a copy
	shared   int

	staged              bool  // it has memory for operands that are staged,
	stagedIn, stagedOut int64 // in the window

	far farMemory
}

// newContext makes the memory. It is collective.
func newContext(ctx context.Context, l *loaded, chunk int, staged bool) (*launchContext, error) {
	c := &launchContext{l: l, chunk: chunk, staged: staged, launches: make(map[*cuda.Function]enginegpu.Launch[planArgs])}
	p, a, f := l.program, &c.initial, l.plan.File
	kept, shared := p.kept()
	window, local := &enginegpu.Workspace{}, enginegpu.NewLocal(p.blocks)
	blocks := local.Zeros(int64(p.blocks) * int64(kept))
	barriers, semaphores := local.Zeros(int64(p.barriers)*8), local.Zeros(int64(p.semaphores)*4)
	awaited, ended := local.Zeros(int64(p.ends)*4), local.Zeros(4)
	c.far.table = local.Raw(int64(len(p.streams)) * farStreamBytes)
	a.inbound = uint64(window.Zeros(int64(p.ends) * 8))
	a.begun = uint64(window.Zeros(int64(len(f.Ranks)) * 8))
	halves := int64(1)
	if f.DoubleScratch {
		halves = 2
	}
	data, packets := int64(p.data)*int64(chunk), 2*int64(p.packets)*int64(chunk)
	if p.mixed {
		packets = max(packets, data)
		data = 0
	}
	a.data = uint64(window.Zeros(halves * data))
	a.packets = uint64(window.Zeros(halves * packets))
	if p.mixed {
		a.data, data = a.packets, packets
	}
	if f.DoubleScratch {
		a.dataHalf, a.packetsHalf = uint64(data), uint64(packets)
	}
	if staged {
		c.layOutStage(window)
	}
	a.stride, a.ownStride = uint32(p.stride), uint32(kept)
	a.operands, a.vectors, a.uses = uint32(p.operands), uint32(p.vectors), uint32(p.uses)
	a.program = uint64(l.memory.Pointer())
	if shared > 0 {
		a.shared, c.shared = 1, shared
	}
	if early, err := l.e.overlap(ctx, l); err != nil {
		return nil, err
	} else if early {
		a.early = 1
	}
	a.own = uint32(p.own)
	spec := enginegpu.LaneSpec{
		Op: l.plan.Name, Owner: "executor", Words: l.words, Window: window, Local: local,
		Multicast: p.switches && l.e.far == nil,
		Moved: func(lane *enginegpu.Lane) {
			c.lane = lane
			for _, a := range c.arguments() {
				a.group, a.state, a.blocks = lane.Group(0), uint64(lane.Local(0)), uint64(lane.Local(blocks))
				a.barriers, a.semaphores = uint64(lane.Local(barriers)), uint64(lane.Local(semaphores))
				a.awaited = uint64(lane.Local(awaited))
				if len(p.streams) > 0 {
					a.streams, a.ended = uint64(lane.Local(c.far.table)), uint64(lane.Local(ended))
				}
			}
		},
	}
	if l.e.far != nil {
		spec.Far = c.reach
	}
	var err error
	if c.lane, err = enginegpu.NewLane(ctx, l.e.comm, spec); err != nil {
		return nil, errors.Join(err, c.far.close())
	}
	return c, nil
}

// arguments are those that launches have.
func (c *launchContext) arguments() []*planArgs {
	all := []*planArgs{&c.initial}
	for _, l := range c.launches {
		return append(all, l.Args) // which all share
	}
	return all
}

// launch is that of a type's kernel.
func (c *launchContext) launch(f *cuda.Function) (l enginegpu.Launch[planArgs], err error) {
	if l, ok := c.launches[f]; ok {
		return l, nil
	}
	for _, other := range c.launches {
		l, err = other.For(f)
		break
	}
	if len(c.launches) == 0 {
		l, err = enginegpu.NewLaunch(f, cuda.LaunchConfig{
			Grid: cuda.Dim{X: uint32(c.l.program.blocks)}, Block: cuda.Dim{X: mostThreads}, Shared: c.shared,
			Dependent: c.l.e.dependent,
		}, c.initial)
	}
	if err == nil {
		c.launches[f] = l
	}
	return l, err
}

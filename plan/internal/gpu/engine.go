package gpu

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/occupancy"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/plan/internal/launch"
)

// Engine runs plans on ranks that have GPUs.
type Engine struct {
	comm      *weft.Comm
	dependent bool // launches may begin while the one before ends
	beside    *enginegpu.Room
	far       *far // nil where all ranks are of one host
	exact     bool // sums have the bits that the plan says, also where a switch could make them

	generation uint64 // of what ranks have agreed on last
	kernels    map[code]*cuda.Function
	// programs are the modules of kernels. They and rooms are given up when nothing of any plan runs.
	programs []*enginegpu.Program
	rooms    rooms // for blocks of plans
	early    rooms // for those of a launch that still runs when the next kernel is there
	plans    []*loaded
	// words name the operations of plans that were loaded, also of those that are so no more: they live as long as the
	// communicator.
	words map[launch.Key]*device.Words
}

// New makes an engine, whose plans share room with kernels that never run at the same time; nil is none. An exact one
// has no switch add up: that has an order of its own. It is collective.
func New(ctx context.Context, comm *weft.Comm, beside *enginegpu.Room, exact bool) (*Engine, error) {
	major, _, err := comm.Device().Context().Device().ComputeCapability()
	if err := comm.Operations().VerifySame(ctx, "new executor", "", err); err != nil {
		return nil, err
	}
	e := &Engine{
		comm: comm, dependent: major >= 9, beside: beside, exact: exact, kernels: make(map[code]*cuda.Function),
		words: make(map[launch.Key]*device.Words), generation: comm.Operations().Generation(),
	}
	if comm.Operations().Spans() {
		e.far = &far{comm: comm}
		if err := e.far.open(ctx, "new executor"); err != nil {
			return nil, errors.Join(err, e.far.close())
		}
	}
	return e, nil
}

// Begin is the first thing that a launch does.
func (e *Engine) Begin(op string) error { return e.comm.Operations().Begin(op) }

// Load uploads a plan's program, and takes room for its blocks.
func (e *Engine) Load(ctx context.Context, p *launch.Plan) (launch.Loaded, error) {
	if e.generation != e.comm.Operations().Generation() {
		if _, err := e.agree(ctx, p.Name, 0); err != nil {
			return nil, err
		}
	}
	l, err := newLoaded(e, p)
	if err := e.comm.Operations().VerifySame(ctx, p.Name, "", err); err != nil {
		return nil, errors.Join(err, l.close())
	}
	err = e.reserve(ctx, l)
	if err == nil && len(p.Reductions) == 0 {
		_, err = e.kernel(ctx, p, nil, moving)
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	e.plans = append(e.plans, l)
	if e.far != nil {
		e.far.claimed = l.channels
	}
	return l, nil
}

// agree has ranks give up what not all have: the failure before this generation may have come when some had loaded a
// kernel, taken room, or made the memory of a plan, and others had not. It returns the fewest contexts of the plan.
func (e *Engine) agree(ctx context.Context, op string, contexts int) (least int, err error) {
	ops := e.comm.Operations()
	generation := ops.Generation()
	note := binary.LittleEndian.AppendUint32(nil, uint32(contexts))
	note = binary.LittleEndian.AppendUint32(note, uint32(e.rooms.blocks))
	note = binary.LittleEndian.AppendUint32(note, uint32(e.early.blocks))
	for c := range e.kernels {
		note = append(note, c.byte())
	}
	notes, err := ops.GatherNotes(ctx, op, note)
	if err != nil {
		return 0, err
	}
	for _, n := range notes {
		const roomsAt, earlyAt, codesAt = 4, 8, 12
		if len(n) < codesAt {
			continue // it is masked
		}
		contexts = min(contexts, int(binary.LittleEndian.Uint32(n)))
		e.rooms.blocks = min(e.rooms.blocks, int(binary.LittleEndian.Uint32(n[roomsAt:])))
		e.early.blocks = min(e.early.blocks, int(binary.LittleEndian.Uint32(n[earlyAt:])))
		maps.DeleteFunc(e.kernels, func(c code, _ *cuda.Function) bool { return !slices.Contains(n[codesAt:], c.byte()) })
	}
	e.generation = generation
	return contexts, nil
}

// reserve takes room for a plan's blocks, on all ranks or on none. A block counts as if it filled an SM, as blocks of
// collectives do. Plans of an engine take turns, so they share room.
func (e *Engine) reserve(ctx context.Context, l *loaded) error {
	most := slices.Max(l.program.everywhere)
	return e.rooms.grow(ctx, e.comm, most, enginegpu.Want{
		Op: l.plan.Name, Cost: occupancy.SMThreads, SMs: e.comm.Device().SMs(), Least: most, Beside: e.beside,
	}, func(has int) (bool, error) {
		if has >= most {
			return true, nil
		}
		held := ""
		if e.early.blocks > 0 {
			held = fmt.Sprintf("load it before plans run, which have taken room for %d more, ", e.early.blocks)
		}
		return false, weft.Unsupportedf("%s: it has %d blocks that wait for each other, and the GPUs have room for %d a "+
			"rank; %swrite it with fewer blocks or instances, give groups and handles fewer SMs, or close one",
			l.plan.Name, most, has, held)
	})
}

// overlap takes room of its own for a plan of few blocks, and says whether it has that: while its launch runs, the
// blocks of the next kernel are there and wait for its end. Those may be as many as the shared room has. No plan
// depends on it. So half of what is free stays so, and it is taken when a plan is to run for the first time: plans that
// are loaded by then have their room. It is collective.
func (e *Engine) overlap(ctx context.Context, l *loaded) (bool, error) {
	most := slices.Max(l.program.everywhere)
	err := e.early.grow(ctx, e.comm, most, enginegpu.Want{
		Op: l.plan.Name, Cost: occupancy.SMThreads, SMs: max(1, 2*e.comm.Device().SMs()/earlyShare),
	}, func(has int) (bool, error) { return 2*most <= has, nil })
	return e.dependent && most <= e.early.blocks, err
}

// earlyShare is which part of a GPU's multiprocessors launches have at most that end beside the next one.
const earlyShare = 4

// rooms are what launches of which one runs at a time have taken, each for more blocks than the one before.
type rooms struct {
	all    []*enginegpu.Room
	blocks int
}

// grow takes room for so many blocks. It is collective. Enough says whether what there is for a rank suffices: if not,
// it takes none, and the error, if there is one, refuses.
func (r *rooms) grow(ctx context.Context, comm *weft.Comm, blocks int, want enginegpu.Want,
	enough func(has int) (bool, error),
) error {
	if blocks <= r.blocks {
		return nil
	}
	if want.Beside == nil && len(r.all) > 0 {
		want.Beside = r.all[0]
	}
	room, err := enginegpu.Fit(ctx, comm, want)
	if err != nil {
		return err
	}
	ok, err := enough(room.Blocks)
	if !ok && err == nil {
		return nil
	}
	r.all = append(r.all, room)
	if err = room.Take(ctx, blocks, room.String(), err); err == nil {
		r.blocks = blocks
	}
	return err
}

// release gives them back.
func (r *rooms) release() {
	for _, x := range slices.Backward(r.all) {
		x.Release()
	}
	*r = rooms{}
}

// kernel is that of a plan on elements of a type. It is loaded, on all ranks, when the first plan needs it: a driver
// loads code only when no kernel runs that waits for a peer, and a capture cannot wait for that.
func (e *Engine) kernel(ctx context.Context, p *launch.Plan, s *weft.Stream, t weft.DType) (*cuda.Function, error) {
	c := code{t, p.Packets, false}
	if e.far != nil || e.comm.Device().Multicast() { // either is so on all ranks, or on none
		c.packets, c.beyond = true, true
	}
	if f := e.kernels[c]; f != nil {
		return f, nil
	}
	if capturing, err := enginegpu.Capturing(e.stream(s)); err != nil || capturing {
		return nil, cmp.Or(err, weft.Unsupportedf("%s: the kernel for %v is not loaded, and a capture cannot wait for that; "+
			"run the plan once before", p.Name, t))
	}
	loaded, err := enginegpu.Load(ctx, e.comm, p.Name, c.source(e.comm.Device().Arch()))
	if err != nil {
		return nil, err
	}
	e.programs = append(e.programs, loaded)
	e.kernels[c] = loaded.Functions(0)[0]
	return e.kernels[c], nil
}

// stream is the stream to enqueue on: the caller's, or the communicator's own.
func (e *Engine) stream(s *weft.Stream) *cuda.Stream {
	if stream := s.CUDA(); stream != nil {
		return stream
	}
	return e.comm.Device().Stream()
}

// Close gives up what the engine has once nothing of it runs: see [enginegpu.Lane.Close].
func (e *Engine) Close() (released bool, err error) {
	var errs []error
	for _, l := range slices.Clone(e.plans) {
		released, err := l.release()
		if !released {
			return false, err
		}
		errs = append(errs, err)
	}
	e.early.release()
	e.rooms.release()
	for _, p := range e.programs {
		errs = append(errs, p.Close())
	}
	e.programs = nil
	return true, errors.Join(append(errs, e.far.close())...)
}

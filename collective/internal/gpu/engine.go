package gpu

import (
	"context"
	"errors"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/choice"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/occupancy"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// Options configures an [Engine]. All ranks pass the same.
type Options struct {
	// Staging is bytes of slots in each rank's window; half as much is for pieces of large operands.
	Staging int
	SMs     int          // that kernels may fill; 0: see [enginegpu.Want]
	Force   []string     // algorithms that are used wherever they fit the request
	Model   *spec.Model  // what algorithms cost
	DTypes  []weft.DType // whose kernels are loaded from the beginning
	Check   bool         // ranks compare their calls before they enqueue
	// SerialGroup is a number of owners whose kernels never run at the same time; 0: none.
	SerialGroup int
	// Own are users' algorithms, which were checked and compared.
	Own []spec.Algorithm
	// Loopback makes the only rank of a communicator one of so many: see loopback.go. 0: it is not.
	Loopback int
	// Within: on a communicator of several hosts the engine's calls are of the ranks of each host alone. Others are as
	// masked: they bring nothing, and their parts stay as they are. Such an engine has the flagged reduce-scatter-v and
	// all-gather-v alone, which calls name.
	Within bool
}

// Engine runs the collectives of a communicator whose ranks are on GPUs. A call is Enter, Prepare
// where it reduces, one operation, and Finish.
type Engine struct {
	comm      *weft.Comm
	programs  []*enginegpu.Program
	room      *enginegpu.Room
	lane      *enginegpu.Lane
	ranks     int
	blocks    int
	turnBytes int
	dependent bool // launches may begin while the one before ends
	bulk      bool // this GPU has bulk copies
	check     bool
	within    bool

	algorithms []*algorithm
	choice     *choice.Chooser
	owns       []*own
	runners    map[*algorithm]spec.Runner // of users' algorithms that have no kernel
	sms        int
	placed     bool // a user's algorithm asks whether operands are in place
	most       int  // blocks that the call's launches have, at most

	args   laneArgs // but for what is an operation's own
	direct directArgs
	group  device.Group
	push   pushStaging
	loop   loopback
	able   spec.Abilities // of every rank's GPU

	barrier    barrier
	directMove directMove

	multicastMove multicastMove // loaded where windows have multicast addresses
	bulkMove      bulkMove
	moves         [encodings]move
	movesV        [encodings]moveV
	credits       uint64 // in the window

	helpersBroadcasts [encodings]helpersBroadcast
	moveLines         moveLines

	messages   messages
	reductions [dtypes]*reductions
	norms      [dtypes]norms
	words      withWords
}

// reductions are the kernels that reduce elements of one type.
type reductions struct {
	oneShot        oneShot
	twoShot        twoShot
	reduceScatter  reduceScatter
	reduceScatterV reduceScatterV
	direct         directReduce
	push           push
	large          largeReductions
	relaxed        push             // it is loaded where its algorithm is named
	multicast      *multicastReduce // nil: it is not loaded
}

// largeReductions are those for large operands, which are loaded when one of them first runs.
type largeReductions struct {
	bulk    bulkReduce
	helpers helpersReduce
}

const dtypes = int(weft.Bool) + 1

// Threads of a block. It has as many as an SM has registers for at most: of kernels for two ranks, which have up to
// 80 registers, more than of others, which have up to 128. A block has fewer where there is room for more blocks, but
// narrow at least, which are as many as a domain has ranks, at least.
const (
	narrow    = 128
	wide      = 512
	widestTwo = 768
)

// threads are those of a block at most: the THREADS of lane.cuh.
func (e *Engine) threads() int {
	if e.ranks <= 2 {
		return widestTwo
	}
	return wide
}

// blockCost is what a block counts for. It may fill an SM: the room of a group is a number of SMs, which holds a block
// of any of its kernels on each.
const blockCost = occupancy.SMThreads

const opNew = "new group"

// New makes an engine. It is collective.
func New(ctx context.Context, comm *weft.Comm, o Options) (*Engine, error) {
	e := &Engine{
		comm: comm, ranks: max(comm.Size(), o.Loopback), loop: loopback{ranks: o.Loopback},
		algorithms: algorithms[:len(algorithms):len(algorithms)], check: o.Check, sms: o.SMs,
		within: o.Within,
	}
	err := e.open(ctx, o)
	for i := range o.Own {
		e.placed = e.placed || o.Own[i].InPlace != spec.AnyPlace
		if err == nil {
			err = e.openOwn(ctx, &o.Own[i])
		}
	}
	e.chooseBy(o.Force, o.Model)
	for _, t := range o.DTypes {
		switch {
		case err != nil:
		case e.within:
			err = e.Prepare(ctx, opNew, t)
		default:
			err = e.prepareLarge(ctx, opNew, t)
		}
	}
	if err != nil {
		_, again := e.Close()
		return nil, errors.Join(err, again)
	}
	return e, nil
}

// chooseBy sets how algorithms are chosen.
func (e *Engine) chooseBy(force []string, m *spec.Model) {
	list := make([]*spec.Algorithm, len(e.algorithms))
	for i, a := range e.algorithms {
		list[i] = &a.Algorithm
	}
	e.choice = choice.New(list, force, m)
}

func (e *Engine) open(ctx context.Context, o Options) (err error) {
	e.turnBytes = Turn(o.Staging)
	if least := leastTurn(e.ranks); e.turnBytes < least {
		return weft.Invalidf("%s: staging memory of %d bytes; %d ranks need %d", opNew, o.Staging, e.ranks, turns*least)
	}
	failed := e.learn(ctx)
	e.room, err = enginegpu.Fit(ctx, e.comm, enginegpu.Want{
		Op: opNew, Cost: blockCost, SMs: o.SMs, SerialGroup: o.SerialGroup, Least: 1,
	})
	if err != nil {
		return err
	}
	e.blocks, e.most = e.room.Blocks, e.room.Blocks
	if err := e.room.Take(ctx, e.blocks, e.room.String(), failed); err != nil {
		return err
	}
	if err := e.loadMoves(ctx); err != nil {
		return err
	}
	window, local := &enginegpu.Workspace{}, enginegpu.NewLocal(e.blocks)
	e.args = laneArgs{turnBytes: uint64(e.turnBytes), counts: uint32(e.blocks)}
	e.args.slots = uint64(window.Ones(int64(turns * e.turnBytes)))
	e.args.cleared = e.args.slots
	e.args.sides = uint64(window.Ones(int64(turns * e.turnBytes / sideShare)))
	e.args.heard = uint64(window.Zeros(8 * int64(e.ranks)))
	e.credits = uint64(window.Zeros(creditsOf(e.turnBytes)))
	e.layOutDirect(window)
	landed := local.Zeros(4 * mostCallWords)
	e.push.layOut(window, o.Staging, e.blocks, e.ranks)
	e.loop.layOut(window, &e.args)
	e.layOutMessages(o.Staging, window, local)
	e.lane, err = enginegpu.NewLane(ctx, e.comm, enginegpu.LaneSpec{
		Op: opNew, Owner: "group", Words: laneWords, Window: window, Local: local, Within: o.Within,
		Moved: func(l *enginegpu.Lane) {
			e.lane, e.group = l, l.Group(0)
			e.args.state, e.args.own = uint64(l.Local(0)), e.group.Window[e.comm.Rank()]
			e.words.landed = uint64(l.Local(landed))
			e.loop.point(&e.group)
		},
	})
	if err != nil {
		return err
	}
	return e.loop.fill(e)
}

// Room is what the engine's kernels have taken of the GPU.
func (e *Engine) Room() *enginegpu.Room { return e.room }

func (e *Engine) target() target { return targetOf(e.comm.Device().Arch(), e.ranks) }

// loadMoves loads the kernels that move data, and those of messages.
func (e *Engine) loadMoves(ctx context.Context) error {
	t, shape := e.target(), e.config()
	if e.within {
		var kernels []loading
		for enc := words; enc < encodings; enc++ {
			kernels = append(kernels, into(&e.movesV[enc].Launch, moveVSource(enc, t), shape, moveVArgs{}))
		}
		return e.load(ctx, kernels...)
	}
	kernels := []loading{
		into(&e.barrier.Launch, barrierSource(t), shape, barrierArgs{}),
		into(&e.directMove.Launch, directMoveSource(t), shape, directMoveArgs{}),
		into(&e.moveLines.Launch, moveLinesSource(t), shape, moveLinesArgs{}),
	}
	for enc := words; enc < encodings; enc++ {
		kernels = append(kernels,
			into(&e.moves[enc].Launch, moveSource(enc, t), shape, moveArgs{}),
			into(&e.movesV[enc].Launch, moveVSource(enc, t), shape, moveVArgs{}),
			into(&e.helpersBroadcasts[enc].Launch, helpersBroadcastSource(enc, t), shape, helpersBroadcastArgs{}))
	}
	if e.comm.Device().Multicast() {
		kernels = append(kernels,
			into(&e.multicastMove.Launch, multicastMoveSource(t), shape, multicastMoveArgs{}))
	}
	kernels = append(kernels,
		into(&e.bulkMove.Launch, bulkMoveSource(t), e.bulkShape(carriers, bulkShared), bulkMoveArgs{chunk: moveChunk}),
		into(&e.messages.Launch, messageSource(t), e.shape(wide, 0), messageArgs{}),
		into(&e.messages.list, messageListSource(t), e.shape(narrow, 0), messageListArgs{}))
	return e.load(ctx, kernels...)
}

// Prepare loads the kernels that reduce elements of a type, unless they are loaded. It is collective.
func (e *Engine) Prepare(ctx context.Context, op string, t weft.DType) error {
	if e.reductions[t] != nil {
		return nil
	}
	r, to, shape := &reductions{}, e.target(), e.config()
	if err := e.uncaptured(op, t); err != nil {
		return err
	}
	kernels := []loading{into(&r.reduceScatterV.Launch, reduceScatterVSource(t, to), shape, reduceScatterVArgs{})}
	if !e.within {
		kernels = append(kernels,
			into(&r.oneShot.Launch, oneShotSource(t, to), shape, allReduceArgs{}),
			into(&r.twoShot.Launch, twoShotSource(t, to), shape, allReduceArgs{}),
			into(&r.reduceScatter.Launch, reduceScatterSource(t, to), shape, reduceScatterArgs{}),
			into(&r.direct.Launch, directReduceSource(t, to), shape, directReduceArgs{}),
			into(&r.push.Launch, pushSource(t, to), e.shape(wide, 0), pushArgs{}))
	}
	if err := e.load(ctx, kernels...); err != nil {
		return err
	}
	e.reductions[t] = r
	return nil
}

// prepareLarge loads those for large operands as well.
func (e *Engine) prepareLarge(ctx context.Context, op string, t weft.DType) error {
	if err := e.Prepare(ctx, op, t); err != nil {
		return err
	}
	l, to := &e.reductions[t].large, e.target()
	if l.helpers.Launch.Launch != nil {
		return nil
	}
	if err := e.uncaptured(op, t); err != nil {
		return err
	}
	return e.load(ctx,
		e.bulkReduce(&l.bulk, bulkReduceSource(t, to)),
		into(&l.helpers.Launch, helpersReduceSource(t, to), e.config(), helpersReduceArgs{}))
}

// prepareFor loads those that an algorithm needs.
func (e *Engine) prepareFor(ctx context.Context, op string, a *algorithm, t weft.DType) error {
	switch {
	case a.large:
		return e.prepareLarge(ctx, op, t)
	case a.multicast():
		return e.prepareMulticast(ctx, op, t)
	}
	if err := e.Prepare(ctx, op, t); err != nil || a.Name != relaxedRing {
		return err
	}
	k := &e.reductions[t].relaxed
	if k.Launch.Launch != nil {
		return nil
	}
	if err := e.uncaptured(op, t); err != nil {
		return err
	}
	return e.load(ctx,
		into(&k.Launch, relaxedSource(t, e.target()), e.shape(bulkThreads, 0), pushArgs{}))
}

// uncaptured refuses to load kernels that reduce elements of a type in a capture.
// A driver loads code only when no kernel runs that waits for a peer; every rank has enqueued all
// that came before on all of them, so what runs ends. A capture cannot wait for it.
func (e *Engine) uncaptured(op string, t weft.DType) error {
	if e.lane.Capture() == 0 {
		return nil
	}
	return weft.Unsupportedf("%s: the kernels that reduce %v are not loaded, and a capture cannot wait for that; "+
		"list the type in Options.DTypes, or make the call once before", op, t)
}

// Enter begins a call: see [enginegpu.Lane.Enter].
func (e *Engine) Enter(ctx context.Context, op string, s *weft.Stream) (*cuda.Stream, error) {
	return e.lane.Enter(ctx, op, s)
}

// Finish ends a call: it waits for the work if the caller gave no stream.
func (e *Engine) Finish(ctx context.Context, s *weft.Stream) error { return e.lane.Finish(ctx, s) }

// Close gives up what the engine has once nothing of it runs: see [enginegpu.Lane.Close].
func (e *Engine) Close() (released bool, err error) {
	if e.lane != nil {
		if released, err = e.lane.Close(); !released {
			return false, err
		}
	}
	errs := []error{err}
	for _, o := range e.owns {
		released, err := o.close()
		if !released {
			return false, err
		}
		errs = append(errs, err)
	}
	for _, r := range e.runners {
		released, err := r.Close()
		if !released {
			return false, err
		}
		errs = append(errs, err)
	}
	e.room.Release()
	for _, p := range e.programs {
		errs = append(errs, p.Close())
	}
	return true, errors.Join(errs...)
}

// An operation that uses more than clearBehind bytes of its turn clears them itself. Less the next one
// clears while its own data is on the way: so much that one of few threads does so in that time, too.
const clearBehind = 256 << 10

// laneOf are the lane's arguments for an operation that uses so many bytes of its turn.
func (e *Engine) laneOf(op uint32, bytes int) laneArgs {
	a := e.args
	a.op = op
	if bytes > clearBehind {
		a.clear = 1
	}
	return a
}

// plain says whether a launch has its plain form, of operands whose parts are n bytes: plain.cuh.
func (e *Engine) plain(in, out operand, n int) uint32 {
	if e.ranks > mostUnrolled || n%vectorBytes != 0 || n > e.most*e.threads()*vectorBytes ||
		in.unit != vectorBytes || out.unit != vectorBytes {
		return 0
	}
	return 1
}

// fewest blocks share what an operation does beside moving data: clearing slots, and raising the counts of blocks.
const fewest = 4

// least is how many blocks a launch has at least, if the call allows: so many that no thread raises more than one of
// all counts.
func (e *Engine) least() int { return max(fewest, (e.blocks+narrow-1)/narrow) }

// launched is a launch's grid, of which so many blocks have something to do.
func (e *Engine) launched(blocks int) cuda.Dim {
	return cuda.Dim{X: uint32(min(max(e.least(), blocks), e.most))}
}

// launcher is a launch whose shape is set.
type launcher interface {
	SetGrid(blocks cuda.Dim)
	SetBlock(threads cuda.Dim)
}

// spread gives a launch a thread for each of so many vectors, or as many as there is room for. Blocks are narrow as
// long as there may be more of them: the more SMs take part, the sooner all stores are on their way.
func (e *Engine) spread(l launcher, vectors int) {
	grid := e.launched((vectors + narrow - 1) / narrow)
	l.SetGrid(grid)
	l.SetBlock(cuda.Dim{X: uint32(width(vectors, int(grid.X), e.threads()))})
}

// width is how many threads, of so many at most, a block has, of so many blocks that serve so many vectors.
func width(vectors, blocks, most int) int {
	each := (vectors + blocks - 1) / blocks
	return min(max(narrow, (each+warp-1)/warp*warp), most)
}

// live is how many ranks take part.
func (e *Engine) live() int {
	if !e.within {
		return e.ranks - e.comm.Mask().Len()
	}
	n := 0
	for r := range e.ranks {
		if e.comm.Host(r) == e.comm.Host(e.comm.Rank()) && !e.comm.Masked(r) {
			n++
		}
	}
	return n
}

// The numbers of operations in records.
const (
	opAllReduce = 1 + iota
	opReduceScatter
	opReduce
	opAllGather
	opAllToAll
	opBroadcast
	opGather
	opScatter
	opBarrier
	opAllGatherV
	opReduceScatterV
	opAllToAllV
	opAllReduceNorm
	opSend
	opReceive
	opBatch
	ops
)

var opNames = [ops]string{
	opAllReduce: "all-reduce", opReduceScatter: "reduce-scatter", opReduce: "reduce", opAllGather: "all-gather",
	opAllToAll: "all-to-all", opBroadcast: "broadcast", opGather: "gather", opScatter: "scatter", opBarrier: "barrier",
	opAllGatherV: "all-gather-v", opReduceScatterV: "reduce-scatter-v", opAllToAllV: "all-to-all-v",
	opAllReduceNorm: "all-reduce-norm",
	opSend:          "send", opReceive: "receive", opBatch: "batch",
}

var laneWords = &device.Words{
	Operation: func(op uint32) string {
		if op < ops {
			return opNames[op]
		}
		return ""
	},
	Message:  func(op uint32) bool { return op == opSend || op == opReceive || op == opBatch },
	Mismatch: mismatch,
	Mirror:   mirrored,
}

package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// host is the engine of a handle on the host.
type host struct {
	*spec.Base
	windows []*weft.Window
	rounds  *enginehost.Rounds
	routing [][]byte          // by rank: memory of the routing metadata
	pool    *pool             // received tensors
	stage   *enginehost.Stage // operands that lie in no window
	partial *enginehost.Stage // this rank's partial sums for the others
	scalars *enginehost.Stage // a number per selection, for gradients of weights
	far     *far              // nil where all ranks are of one host
	hosts   int

	sent struct { // the operation that was last sent to be received later
		op    string // "" once it was received
		round uint64 // that opened it
	}
	workers int

	scratch                     scratch
	batches                     spec.Slab[spec.Batch]
	dispatchWaits, combineWaits []int64 // where waits are counted, or nil

	mu   sync.Mutex
	idle []*hostRouting
}

// scratch is what the operations of one handle, of which one runs at a time, use again and again.
type scratch struct {
	numbers [][]float32 // by rank: of fetchScalars
	cursor  []int32
	views   []metadata
	counts  [][]int32 // by rank: its metadata's, nil for masked ranks
	tokens  [][]int32 // the same
	zones   spec.Zones

	// Of one token: the ranks that it goes to, those that keep a row of it, and by rank its last
	// selection there. sent counts the tokens for each rank so far.
	ranks, kept bitset
	last, sent  []int32

	// Sums over all ranks, and over those below this one: selections of each expert, tokens for
	// each rank.
	total, before           []int32
	tokenTotal, tokenBefore []int32

	gather   gather
	operands []operand // by rank: of the gather's
	stager   stager
	mover    mover
	spans    []span
}

func newScratch(g *spec.Geometry) scratch {
	n := g.Ranks
	return scratch{
		numbers:  make([][]float32, n),
		ranks:    newBitset(n),
		kept:     newBitset(n),
		last:     make([]int32, n),
		sent:     make([]int32, n),
		cursor:   make([]int32, max(n, g.Experts)),
		views:    make([]metadata, n),
		counts:   make([][]int32, n),
		tokens:   make([][]int32, n),
		operands: make([]operand, n),
		zones:    spec.NewZones(g.Local),

		total: make([]int32, g.Experts), before: make([]int32, g.Experts),
		tokenTotal: make([]int32, n), tokenBefore: make([]int32, n),
	}
}

// NewHost makes the engine of a handle. It is collective.
func NewHost(ctx context.Context, of *spec.Base) (spec.HostRowEngine, error) {
	h := &host{Base: of}
	for r := range h.Comm.Size() {
		h.hosts = max(h.hosts, h.Comm.Host(r)+1)
	}
	h.workers = max(1, runtime.NumCPU()/h.Comm.LocalSize())
	if err := h.allocate(ctx); err != nil {
		_, again := h.Close()
		return nil, errors.Join(err, again)
	}
	h.scratch = newScratch(&h.Geometry)
	h.idle = make([]*hostRouting, 0, 8)
	return h, nil
}

func (h *host) allocate(ctx context.Context) error {
	g, s := &h.Geometry, h.Spec
	alloc := func(size int) (*weft.Window, error) {
		w, err := h.Comm.Operations().AllocHost(ctx, size)
		if err == nil {
			h.windows = append(h.windows, w)
		}
		return w, err
	}
	size := g.WindowSizes(s)
	var err error
	h.rounds, err = enginehost.New(ctx, h.Comm, enginehost.Config{
		Kind: "handle", Own: farBytes(h.Comm) + int(size.Metadata), Differs: differ, Lines: farLines(h.Comm),
	})
	if err != nil {
		return err
	}
	h.windows = append(h.windows, h.rounds.Window)
	h.routing = make([][]byte, h.Comm.Size())
	if !h.Comm.Operations().Spans() { // else keepers change with masks: see far.follow
		for r := range h.routing {
			h.routing[r] = h.rounds.OwnBytes(r)
		}
	}
	w, err := alloc(int(size.Block) * s.Live)
	if err != nil {
		return err
	}
	h.pool = &pool{window: w, size: int(size.Block), buffers: h.Buffers}
	h.Buffers.Locate(uintptr(size.Block), uintptr(unsafe.Pointer(unsafe.SliceData(w.Bytes()))))
	if w, err = alloc(int(size.Stage)); err != nil {
		return err
	}
	h.stage = h.rounds.NewStage(w)
	if size.Partial > 0 {
		if w, err = alloc(int(size.Partial)); err != nil {
			return err
		}
		h.partial = h.rounds.NewStage(w)
	}
	if size.Scalars > 0 {
		if w, err = alloc(int(size.Scalars)); err != nil {
			return err
		}
		h.scalars = h.rounds.NewStage(w)
	}
	return h.newFar(ctx, alloc)
}

func (h *host) Resources() (r spec.Resources) {
	for _, w := range h.windows {
		r.Bytes += w.Size()
	}
	return r
}

// OnStep implements [spec.HostRowEngine].
func (h *host) OnStep(step func()) { h.rounds.Step = step }

// Shipped implements [spec.HostRowEngine].
func (h *host) Shipped() uint64 { return h.rounds.Shipped() }

func (h *host) CountWaits(dispatch, combine weft.Tensor) {
	numbers := func(t weft.Tensor) []int64 {
		if t.IsZero() {
			return nil
		}
		return unsafe.Slice((*int64)(t.Data), t.Elems())
	}
	h.dispatchWaits, h.combineWaits = numbers(dispatch), numbers(combine)
}

func (*host) OperandBuffers() (combine, gradient weft.Tensor) { return weft.Tensor{}, weft.Tensor{} }

// waits is where an operation counts its waits, or nil.
func (h *host) waits(op string) []int64 {
	if op == spec.OpCombine || op == spec.OpDispatchBackward {
		return h.combineWaits
	}
	return h.dispatchWaits
}

func (h *host) Put(buffer int) { h.Buffers.Put(buffer) }

func (h *host) Close() (released bool, err error) {
	var errs []error
	for _, w := range h.windows {
		errs = append(errs, w.Close())
	}
	return true, errors.Join(errs...)
}

// enter begins an operation, and returns the round that opens it, which is its only one.
func (h *host) enter(op string) (round uint64, err error) {
	if err := h.rounds.Begin(op); err != nil {
		return 0, err
	}
	h.far.follow()
	if h.pending() {
		return 0, weft.Invalidf("%s: the handle's %s has been sent and not received; receive it first", op, h.sent.op)
	}
	return h.rounds.Next(), nil
}

// pending reports whether an operation's second half is still to come. A mask ends that: rounds then
// have higher numbers.
func (h *host) pending() bool { return h.sent.op != "" && h.sent.round == h.rounds.Last() }

// onHost refuses streams. As any other refusal it goes to the peers: they would wait for a rank that
// does not open the operation.
func onHost(op string, s *weft.Stream) error {
	if s != nil {
		return weft.Unsupportedf("%s: the host engine has no streams; pass none", op)
	}
	return nil
}

// resume begins the second half of the operation that opened in a round.
func (h *host) resume(op string, round uint64) error {
	if err := h.rounds.Resume(op); err != nil {
		return err
	}
	if h.rounds.Last() != round {
		return fmt.Errorf("%s: %w: ranks were masked after it was sent; prepare and send again", op, weft.ErrAborted)
	}
	h.sent.op = ""
	return nil
}

// live reports whether rank takes part.
func (h *host) live(rank int) bool { return !h.Comm.Masked(rank) }

// refuse opens an operation with the reason why this rank cannot take part, and returns the error of
// all ranks.
func (h *host) refuse(ctx context.Context, op string, own error) error {
	return h.awaitCalls(ctx, h.rounds.Refuse(own), op, own)
}

// awaitCalls waits until every rank has opened the operation. It fails on all of them if one refuses,
// or if they have not made the same call.
func (h *host) awaitCalls(ctx context.Context, round uint64, op string, own error) error {
	err := h.rounds.AwaitCalls(ctx, op, round, own, h.waits(op))
	if err != nil {
		h.rounds.Leave()
		if h.Comm.Err() == nil { // what is on its way to other hosts may be the caller's
			err = cmp.Or(h.rounds.AwaitShipped(ctx, op), err)
		}
	}
	return err
}

// leave says that this rank has finished reading the operands of its peers, and sees to it that what it sends to other
// hosts is on its way. It fails if this rank was told of a failure meanwhile: the others may have gone on without it,
// and what it has read may be what they wrote later.
func (h *host) leave(ctx context.Context, op string) error {
	h.rounds.Leave()
	if err := h.rounds.AwaitTold(ctx, op); err != nil {
		return err
	}
	return h.Comm.Operations().Begin(op)
}

// ended says, for traces, that an operation has ended, unless it failed. It returns the error.
func (h *host) ended(err error) error {
	if err == nil {
		h.rounds.End()
	}
	return err
}

// parallelBytes is the size of a move from which it is worth sharing among goroutines.
const parallelBytes = 1 << 20

// job is work on rows that do not depend on each other.
type job interface {
	rows(from, to int)
}

// each does j for the rows [0, n), in parts side by side if the rank has processors to itself and
// the work is large. The result does not depend on the parts.
func (h *host) each(n, bytes int, j job) {
	w := min(h.workers, n)
	if w < 2 || bytes < parallelBytes {
		j.rows(0, n)
		return
	}
	spread(n, w, j)
}

func spread(n, parts int, j job) {
	var group sync.WaitGroup
	for i := range parts {
		group.Go(func() { j.rows(i*n/parts, (i+1)*n/parts) })
	}
	group.Wait()
}

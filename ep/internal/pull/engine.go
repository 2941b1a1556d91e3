package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft/channel"
	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// host is the engine of a handle on the host.
type host struct {
	*spec.Base
	windows []*weft.Window
	boards  []*board          // by rank
	pool    *pool             // received tensors
	stage   *enginehost.Stage // operands that lie in no window
	partial *enginehost.Stage // this rank's partial sums for the others
	scalars *enginehost.Stage // a number per selection, for gradients of weights

	epochs  channel.Sequence // the last one is of the last operation entered
	pending string           // the operation whose second half is still to come
	workers int

	scratch                     scratch
	batches                     spec.Slab[spec.Batch]
	dispatchWaits, combineWaits []int64 // where waits are counted, or nil

	mu   sync.Mutex
	idle []*hostRouting
}

// scratch is what the operations of one handle, of which one runs at a time, use again and again.
type scratch struct {
	notices []*notice
	numbers [][]float32 // by rank: of fetchScalars
	cursor  []int32
	views   []routing
	counts  [][]int32
	visits  [][]int32
	zones   spec.Zones

	// Of one token: the ranks that it goes to, those that keep a row of it, and by rank its last
	// selection there. sent counts the tokens for each rank so far.
	ranks, kept bitset
	last, sent  []int32

	// Sums over all ranks, and over those below this one: selections of each expert, tokens for
	// each rank.
	total, before           []int32
	visitTotal, visitBefore []int32

	gather   gather
	operands []operand // by rank: of the gather's
	stager   stager
	mover    mover
	spans    []span
}

func newScratch(g *spec.Geometry) scratch {
	n := g.Ranks
	return scratch{
		notices:  make([]*notice, n),
		numbers:  make([][]float32, n),
		ranks:    newBitset(n),
		kept:     newBitset(n),
		last:     make([]int32, n),
		sent:     make([]int32, n),
		cursor:   make([]int32, max(n, g.Experts)),
		views:    make([]routing, n),
		counts:   make([][]int32, n),
		visits:   make([][]int32, n),
		operands: make([]operand, n),
		zones:    spec.NewZones(g.Local),

		total: make([]int32, g.Experts), before: make([]int32, g.Experts),
		visitTotal: make([]int32, n), visitBefore: make([]int32, n),
	}
}

func NewHost(ctx context.Context, of *spec.Base) (spec.RowEngine, error) {
	h := &host{Base: of}
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
		w, err := h.Comm.Alloc(ctx, size)
		if err == nil {
			h.windows = append(h.windows, w)
		}
		return w, err
	}
	size := g.WindowSizes(s)
	w, err := alloc(int(size.Board))
	if err != nil {
		return err
	}
	h.boards = make([]*board, h.Comm.Size())
	for r := range h.boards {
		if mem := w.Peer(r); mem != nil {
			h.boards[r] = newBoard(g, mem)
		}
	}
	if w, err = alloc(int(size.Block) * s.Live); err != nil {
		return err
	}
	h.pool = &pool{window: w, size: int(size.Block), buffers: h.Buffers}
	h.Buffers.Place(uintptr(size.Block), uintptr(unsafe.Pointer(unsafe.SliceData(w.Bytes()))))
	if w, err = alloc(int(size.Stage)); err != nil {
		return err
	}
	h.stage = &enginehost.Stage{Window: w}
	if size.Partial > 0 {
		if w, err = alloc(int(size.Partial)); err != nil {
			return err
		}
		h.partial = &enginehost.Stage{Window: w}
	}
	if size.Scalars > 0 {
		if w, err = alloc(int(size.Scalars)); err != nil {
			return err
		}
		h.scalars = &enginehost.Stage{Window: w}
	}
	return nil
}

func (h *host) Resources() (r spec.Resources) {
	for _, w := range h.windows {
		r.Bytes += w.Size()
	}
	return r
}

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

// enter begins an operation: it takes the next epoch, which is the same on every rank.
func (h *host) enter(op string) (epoch uint64, err error) {
	if h.Closed {
		return 0, fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	if err := h.Comm.Operations().Begin(op); err != nil {
		return 0, err
	}
	if h.epochs.Begin(h.Comm.Operations().Generation()) {
		// Ranks have agreed to go on after a failure: no rank is inside an older operation, whatever
		// it left behind.
		h.pending = ""
		h.stage.Forget()
		h.partial.Forget()
		h.scalars.Forget()
	}
	if h.pending != "" {
		return 0, weft.Invalidf("%s: the handle's %s has been sent and not received; receive it first", op, h.pending)
	}
	return h.epochs.Next(), nil
}

// onHost refuses streams. As any other refusal it goes by the notice: a rank that would not enter
// would leave its peers waiting.
func onHost(op string, s *weft.Stream) error {
	if s != nil {
		return weft.Unsupportedf("%s: the host engine has no streams; pass nil", op)
	}
	return nil
}

// resume begins the second half of the operation of the epoch.
func (h *host) resume(op string, epoch uint64) error {
	if h.Closed {
		return fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	if h.epochs.Last() != epoch || h.epochs.Generation() != h.Comm.Operations().Generation() {
		return fmt.Errorf("%s: %w: ranks were masked after it was sent; prepare and send again", op, weft.ErrAborted)
	}
	h.pending = ""
	return h.Comm.Operations().Begin(op)
}

// own is this rank's board.
func (h *host) own() *board { return h.boards[h.Comm.Rank()] }

// live reports whether rank takes part.
func (h *host) live(rank int) bool { return !h.Comm.Masked(rank) }

// awaitNotice waits until rank has entered the epoch and returns where its operand is, or the error
// with which it refused.
func (h *host) awaitNotice(ctx context.Context, epoch uint64, rank int, op string) (*notice, error) {
	b := h.boards[rank]
	if b == nil {
		return nil, fmt.Errorf("%s: rank %d was masked when the handle was made: %w; make a new handle", op,
			rank, weft.ErrMasked)
	}
	if err := h.Waiter.Wait(ctx, b.post[epoch&1], epoch, op, rank); err != nil {
		return nil, h.Comm.Operations().Fail(err)
	}
	return b.notices[epoch&1], nil
}

// awaitCounted is awaitNotice, and adds how long it took to the rank's number in waits, if there
// are any and the rank had not entered the epoch.
func (h *host) awaitCounted(ctx context.Context, epoch uint64, rank int, op string, waits []int64) (*notice, error) {
	if b := h.boards[rank]; waits != nil && b != nil && b.post[epoch&1].Load() < epoch {
		begun := time.Now()
		defer func() { waits[rank] += int64(time.Since(begun)) }()
	}
	return h.awaitNotice(ctx, epoch, rank, op)
}

// awaitAll waits until every unmasked rank has entered the epoch. If any of them refused, all
// return the error of the lowest one; if they have not all made the same call, every one names
// another that made a different one.
func (h *host) awaitAll(ctx context.Context, epoch uint64, op string, own error) error {
	n, waits := h.Comm.Size(), h.waits(op)
	for r := range n {
		h.scratch.notices[r] = nil
		if !h.live(r) {
			continue
		}
		notice, err := h.awaitCounted(ctx, epoch, r, op, waits)
		if err != nil {
			return err
		}
		h.scratch.notices[r] = notice
	}
	for r, notice := range h.scratch.notices {
		if notice == nil {
			continue
		}
		if err := h.boards[r].refusal(epoch, r, op); err != nil {
			if r == h.Comm.Rank() {
				err = own
			}
			return cmp.Or(h.leave(epoch, op), err)
		}
	}
	call := h.own().call(epoch)
	for r, notice := range h.scratch.notices {
		if notice == nil {
			continue
		}
		if c := h.boards[r].call(epoch); c != call {
			err := error(&weft.PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: %s", weft.ErrMismatch, call.differs(c))})
			return cmp.Or(h.leave(epoch, op), err)
		}
	}
	return nil
}

// leave says that this rank has finished reading the operands of the epoch. It fails if this rank
// was told of a failure meanwhile: the others may have gone on without it, and what it has read may
// be what they wrote later.
func (h *host) leave(epoch uint64, op string) error {
	h.own().done.Publish(epoch)
	return h.Comm.Operations().Begin(op)
}

// broken is what an operation does with a peer's words that cannot be: they are an error, unless
// this rank was left out and they are not meant for it.
func (h *host) broken(err *weft.PeerError) error {
	if fault := h.Comm.Operations().Begin(err.Op); fault != nil {
		return fault
	}
	return h.Comm.Operations().Fail(err)
}

// awaitDone waits until every unmasked rank has finished reading the operands of the epoch.
func (h *host) awaitDone(ctx context.Context, epoch uint64, op string) error {
	for r, b := range h.boards {
		if b == nil || !h.live(r) {
			continue
		}
		if err := h.Waiter.Wait(ctx, b.done, epoch, op, r); err != nil {
			return h.Comm.Operations().Fail(err)
		}
	}
	return nil
}

// post says that this rank has entered the epoch, with its operands or with the reason why it
// cannot.
func (h *host) post(epoch uint64, c call, data, scales enginehost.OperandRef, err error) {
	h.own().enter(epoch, c, data, scales, err)
}

// memory resolves a place of another rank.
func (h *host) memory(rank int, p enginehost.OperandRef, op string) ([]byte, error) {
	if p.Window == 0 {
		return nil, nil
	}
	w, ok := h.Comm.Operations().Window(p.Window)
	if !ok || p.Offset > uint64(w.Size()) || w.Peer(rank) == nil {
		err := fmt.Errorf("%w: its operand lies in window %d, which is closed here", weft.ErrMismatch, p.Window)
		return nil, h.broken(&weft.PeerError{Rank: rank, Op: op, Err: err})
	}
	return w.Peer(rank)[p.Offset:], nil
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

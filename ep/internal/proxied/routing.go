package proxied

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// routing is what the engine knows of a Routing. The host engine's batch is made by the goroutine, when the stream
// comes to the prepare, and anew in each replay.
type routing struct {
	h        *handle
	memory   *cuda.Memory // of the counts
	rows     *cuda.Memory // of what each row is, once a caller has asked
	stream   *weft.Stream // where it was prepared, or was brought weights
	queue    *cuda.Stream // the same
	tokens   int          // of this rank
	graphed  bool         // a graph writes it, whenever it is replayed: for good
	replayed bool         // a graph prepares it, each time anew: what the host has asked for it asks again
	known    bool         // the host has waited for the prepare
	filled   bool         // it is enqueued that the description of rows is written, of what the Routing is now
	weighed  bool         // a graph brings weights, other ones each time

	mu       sync.Mutex
	batch    *spec.Batch // of the host engine; nil: the prepare has not run
	overflow error       // which the prepare is to return
	found    found
}

// found is what the prepare has found.
type found struct {
	kept, demand int
	traffic      spec.Traffic
}

// Parts of a routing's memory: of the counts, and of what each row is.
var (
	countParts = []spec.Part{
		spec.Ranges, spec.ExpertCounts, spec.ExpertDemand, spec.PaddedCounts, spec.ExpertOffsets, spec.SourceCounts,
		spec.RowDemand,
	}
	expertParts = []spec.Part{spec.SourceTokens, spec.SourceRanks, spec.SourceSelections, spec.RowWeights}
	rankParts   = []spec.Part{spec.SourceTokens, spec.SourceRanks, spec.RowExperts, spec.RowSelectionWeights}
)

// rowParts are the parts that say what each row is.
func (h *handle) rowParts() []spec.Part {
	if h.Spec.Layout.ByExpert() {
		return expertParts
	}
	return rankParts
}

// partOf is the type of a part, and its shape among so many rows.
func (h *handle) partOf(p spec.Part, rows int) (weft.DType, []int) {
	g := &h.Geometry
	switch p {
	case spec.Ranges:
		return weft.Int64, []int{g.Local, g.Ranks}
	case spec.ExpertCounts, spec.ExpertDemand, spec.PaddedCounts, spec.ExpertOffsets:
		return weft.Int32, []int{g.Local}
	case spec.SourceCounts:
		return weft.Int32, []int{g.Ranks}
	case spec.RowDemand:
		return weft.Int32, []int{1}
	case spec.RowWeights:
		return weft.Float32, []int{rows}
	case spec.RowExperts:
		return weft.Int32, []int{rows, g.TopK}
	case spec.RowSelectionWeights:
		return weft.Float32, []int{rows, g.TopK}
	default:
		return weft.Int32, []int{rows}
	}
}

// place finds a part among others that stand behind each other, of the most rows: where it begins, and where all end.
func (h *handle) place(parts []spec.Part, part spec.Part) (at, end int, ok bool) {
	for _, p := range parts {
		if p == part {
			at, ok = end, true
		}
		d, shape := h.partOf(p, h.Geometry.Rows())
		n := d.Size()
		for _, k := range shape {
			n *= k
		}
		end += (n + 127) &^ 127
	}
	return at, end, ok
}

func (h *handle) newRouting() (*routing, error) {
	r := &routing{h: h}
	_, size, _ := h.place(countParts, spec.RowDemand)
	var err error
	if r.memory, err = h.device.Context().Alloc(size); err != nil {
		return nil, err
	}
	h.all = append(h.all, r)
	return r, nil
}

// newBatch takes an idle routing, or makes one, for a prepare that is about to be enqueued. One that a graph writes
// serves graphs only: a replay may come at any time.
func (h *handle) newBatch(stream *cuda.Stream, tokens int, weighted bool) (*spec.Batch, error) {
	captured := h.proxy.Captured()
	if captured && h.Spec.Layout.Packed() && h.Spec.Counts == spec.HostCounts {
		return nil, weft.Unsupportedf("%s: with HostCounts it waits for the number of rows, which a capture cannot do; use "+
			"DeviceCounts, or prepare before the capture", spec.OpPrepare)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.idle.Take(captured, h.newRouting)
	if err != nil {
		return nil, err
	}
	r.at(stream)
	r.tokens, r.replayed, r.known, r.filled, r.weighed = tokens, captured, false, false, false
	r.write()
	h.epoch++
	b := h.batches.Take()
	*b = spec.Batch{
		Base: h.Base, Info: r, Tokens: tokens, Masked: h.Comm.Operations().MaskPointer(),
		Weights: spec.WeightsIf(weighted), Epoch: h.epoch,
	}
	return b, nil
}

// at says in which stream the routing was written last.
func (r *routing) at(stream *cuda.Stream) { r.queue, r.stream = stream, weft.StreamOf(stream) }

// write says that the operation which is being enqueued writes the routing.
func (r *routing) write() { r.graphed = r.graphed || r.h.proxy.Captured() }

// brought says that a dispatch brings a batch weights.
func (r *routing) brought(stream *cuda.Stream) {
	r.at(stream)
	r.filled, r.weighed = false, r.weighed || r.h.proxy.Captured()
	r.write()
}

// Free implements [spec.Info]. The batch of the host engine goes with the next prepare: operations that are enqueued
// need it.
func (r *routing) Free() {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	r.h.idle.Put(r, r.graphed)
}

func (r *routing) close() error {
	if r.rows == nil {
		return r.memory.Close()
	}
	return errors.Join(r.rows.Close(), r.memory.Close())
}

// prepared takes over what a prepare of the host engine has made, and writes the counts. It is the goroutine's.
func (r *routing) prepared(b *spec.Batch, err error) error {
	r.forget()
	var overflow *spec.OverflowError
	if errors.As(err, &overflow) && !r.replayed && r.h.Spec.Counts == spec.HostCounts {
		r.mu.Lock()
		r.overflow = overflow
		r.mu.Unlock()
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.batch, r.overflow = b, nil
	r.found = found{kept: b.Info.Received(), demand: b.Info.Demand(), traffic: b.Info.Traffic()}
	r.mu.Unlock()
	return r.h.store(r.moves(countParts, r.memory, b.Info)...)
}

// forget gives back what the prepare before has made.
func (r *routing) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batch != nil {
		r.batch.Release()
		r.batch = nil
	}
}

// moves are those of parts to memory.
func (r *routing) moves(parts []spec.Part, to *cuda.Memory, from spec.Info) (all []move) {
	for _, p := range parts {
		at, _, _ := r.h.place(parts, p)
		if p == spec.Ranges && !r.h.Spec.Layout.ByExpert() {
			continue
		}
		all = append(all, move{to.Pointer().Add(at), from.Tensor(p).Raw()})
	}
	return all
}

// here is the host engine's batch, for an operation of the goroutine's.
func (r *routing) here(op string) (*spec.Batch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batch == nil {
		return nil, fmt.Errorf("%s: %w: the routing's prepare has failed", op, weft.ErrAborted)
	}
	return r.batch, nil
}

// uncaptured refuses what would end a capture of the stream.
func (r *routing) uncaptured() error {
	captured, err := enginegpu.Capturing(r.queue)
	if err == nil && captured {
		err = weft.Unsupportedf("a capture cannot wait for counts, nor allocate")
	}
	return err
}

// await waits for the prepare, unless the host has.
func (r *routing) await(ctx context.Context) (found, error) {
	if !r.known || r.replayed {
		if err := r.uncaptured(); err != nil {
			return found{}, err
		}
		if err := r.h.Comm.Wait(ctx, r.stream); err != nil {
			return found{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overflow != nil {
		return found{}, r.overflow
	}
	if r.batch == nil {
		return found{}, fmt.Errorf("%s: %w: it has failed", spec.OpPrepare, weft.ErrAborted)
	}
	r.known = true
	return r.found, nil
}

// awaitCounts waits for the counts of a batch that the present call has prepared, if the Spec wants them on the host.
func (h *handle) awaitCounts(ctx context.Context, b *spec.Batch) error {
	if h.Spec.Counts != spec.HostCounts || h.proxy.Captured() {
		return nil
	}
	_, err := b.Info.(*routing).await(ctx)
	return err
}

// Traffic implements [spec.Info]. As the other numbers it waits for the stream, unless the host knows it already.
func (r *routing) Traffic() spec.Traffic {
	f, err := r.await(context.Background())
	if err != nil {
		return spec.Traffic{Tokens: r.tokens} // the failure is the communicator's, and sticks to it
	}
	return f.traffic
}

// Rows implements [spec.Info].
func (r *routing) Rows() int {
	if s := &r.h.Spec; s.Layout.Packed() && s.Counts == spec.HostCounts {
		return r.Received()
	}
	return r.h.Geometry.Rows()
}

// Received implements [spec.Info].
func (r *routing) Received() int {
	f, _ := r.await(context.Background())
	return f.kept
}

// RowsKnown implements [spec.Info].
func (r *routing) RowsKnown() int {
	if !r.known || r.replayed {
		return 0
	}
	return r.Received()
}

// Demand implements [spec.Info].
func (r *routing) Demand() int {
	f, _ := r.await(context.Background())
	return f.demand
}

// Tensor implements [spec.Info].
func (r *routing) Tensor(part spec.Part) weft.Tensor {
	if at, _, ok := r.h.place(countParts, part); ok {
		d, shape := r.h.partOf(part, 0)
		return weft.DeviceTensor(r.memory.Pointer().Add(at), d, shape...)
	}
	if r.describe() != nil {
		return weft.Tensor{}
	}
	at, _, _ := r.h.place(r.h.rowParts(), part)
	d, shape := r.h.partOf(part, r.Rows())
	return weft.DeviceTensor(r.rows.Pointer().Add(at), d, shape...)
}

const opDescribe = "describe rows"

// describe enqueues what writes the description of the rows, unless it is there already, in the stream of the
// prepare. In a capture only replays write it, and each may prepare another routing, or bring other weights.
func (r *routing) describe() error {
	if r.filled {
		return nil
	}
	h := r.h
	if r.rows == nil {
		if err := r.uncaptured(); err != nil {
			return err
		}
		_, size, _ := h.place(h.rowParts(), spec.SourceTokens)
		var err error
		if r.rows, err = h.device.Context().Alloc(size); err != nil {
			return err
		}
	}
	stream, err := h.proxy.EnterLocal(opDescribe, r.stream)
	if err != nil {
		return err
	}
	if err := h.start(stream, opDescribe, func() error {
		b, err := r.here(opDescribe)
		if err != nil {
			return err
		}
		return h.store(r.moves(h.rowParts(), r.rows, b.Info)...)
	}); err != nil {
		return err
	}
	r.filled = !h.proxy.Captured() && !r.replayed && !r.weighed
	r.write()
	return nil
}

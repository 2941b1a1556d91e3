package gpu

import (
	"context"
	"encoding/binary"
	"errors"

	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// gpuRouting is what the GPU engine knows of a Routing: all of it in the GPU's memory, where the
// kernels have put it.
type gpuRouting struct {
	h       *handle
	memory  *cuda.Memory
	stream  *cuda.Stream // where it was prepared
	tokens  int
	masked  *weft.RankSet
	graphed bool // a graph writes it, whenever it is replayed: for good

	replayed  bool // a graph prepares it, each time anew: what the host has asked for it asks again
	counted   bool // the host has asked
	described described
	measured  bool // and for the traffic
	traffic   spec.Traffic

	rows        *cuda.Memory // what each row is, once a caller has asked
	description describedRows
	filled      bool // it is enqueued that it says so, of what the Routing is now
	rewritten   bool // a graph brings weights, other ones each time
}

// described is what a Routing says of what comes here, and of how much is wanted everywhere: the
// Described of direct.cuh, of which those that move rows through slots, where nothing
// overflows, fill in the first five.
type described struct {
	counts, offsets      []int32 // [local]
	fromSource, tokens   []int32 // [ranks]
	rows                 []int32 // [1]
	routing              []int32 // [1]: of which Prepare it is, for kernels that compare
	demand, padded       []int32 // [local]
	wanted, over, excess []int32 // [ranks]
}

// read takes the words over.
func (d *described) read(h *handle, raw []byte) {
	words := make([]int32, len(raw)/4)
	for i := range words {
		words[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	local, ranks := h.Geometry.Local, h.Geometry.Ranks
	d.counts, d.offsets = spec.Carve(&words, local), spec.Carve(&words, local)
	d.fromSource, d.tokens, d.rows = spec.Carve(&words, ranks), spec.Carve(&words, ranks), spec.Carve(&words, 1)
	d.routing = spec.Carve(&words, 1)
	if !h.routing.overflows {
		return
	}
	d.demand, d.padded = spec.Carve(&words, local), spec.Carve(&words, local)
	d.wanted, d.over, d.excess = spec.Carve(&words, ranks), spec.Carve(&words, ranks), spec.Carve(&words, ranks)
}

// routingLayout is where the parts of a Routing stand in its memory.
type routingLayout struct {
	home, recvRows, described, ranges int
	// of the dispatcher's choice
	destRows, recvTokens int
	experts              int
	overflows            bool // rows may overflow: what is described has all its parts

	words int // that are described
	total int
}

func (l *routingLayout) region(size int) (at int) {
	at = l.total
	l.total += (size + 127) &^ 127
	return at
}

// layOutRouting lays out the memory of routings.
func (h *handle) layOutRouting() {
	g, l := &h.Geometry, &h.routing
	l.home = l.region(g.Tokens * g.TopK * pairBytes)
	l.recvRows = l.region(g.Ranks * g.Tokens * g.TopK * pairBytes)
	h.dispatcher.addRouting(l)
	l.words = 2*g.Local + 2*g.Ranks + 2
	if l.overflows {
		l.words += 2*g.Local + 3*g.Ranks
	}
	l.described = l.region(l.words * 4)
	l.ranges = l.region(g.Local * g.Ranks * 8)
}

func (h *handle) newRouting() (*gpuRouting, error) {
	r := &gpuRouting{h: h}
	var err error
	if r.memory, err = h.device.Context().Alloc(h.routing.total); err != nil {
		return nil, err
	}
	h.all = append(h.all, r)
	return r, nil
}

// newBatch takes an idle Routing, or makes one, for a Prepare that is about to be enqueued. A Routing
// that a graph writes serves graphs only: a replay may come at any time, and would write it while an
// operation outside the graph uses it.
func (h *handle) newBatch(stream *cuda.Stream, tokens int, weighted bool) (*spec.Batch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	captured := h.lane.Capture() != 0
	r, err := h.idle.Take(captured, h.newRouting)
	if err != nil {
		return nil, err
	}
	r.stream, r.tokens, r.masked = stream, tokens, h.Comm.Operations().MaskPointer()
	r.replayed, r.counted, r.measured = captured, false, false
	r.filled, r.rewritten = false, false
	r.rewrite()
	b := h.batches.Take()
	*b = spec.Batch{
		Base: h.Base, Info: r, Tokens: tokens, Masked: r.masked,
		Weights: spec.WeightsIf(weighted), Epoch: h.lane.Operations(),
	}
	return b, nil
}

// awaitCounts waits for the counts of the batch that the present call has prepared, if the Spec wants
// them on the host. Those of a captured call are read when the caller asks for them.
func (h *handle) awaitCounts(ctx context.Context, r *spec.Batch) error {
	if h.Spec.Counts != spec.HostCounts || h.lane.Capture() != 0 {
		return nil
	}
	return r.Info.(*gpuRouting).count(ctx)
}

// gotWeights says that a dispatch brings a batch weights, in a stream behind which those who ask for
// them are to come.
func gotWeights(b *spec.Batch, stream *cuda.Stream) {
	p := b.Info.(*gpuRouting)
	b.Weights, p.stream, p.filled, p.rewritten = spec.WeightsEverywhere, stream, false, p.rewritten ||
		p.h.lane.Capture() != 0
	p.rewrite()
}

// rewrite says that the operation which is being enqueued writes the Routing.
func (r *gpuRouting) rewrite() { r.graphed = r.graphed || r.h.lane.Capture() != 0 }

// Free keeps the memory for the next Routing: to give it back would wait for the device.
func (r *gpuRouting) Free() {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	r.h.idle.Put(r, r.graphed)
}

func (r *gpuRouting) close() error {
	if r.rows == nil {
		return r.memory.Close()
	}
	return errors.Join(r.rows.Close(), r.memory.Close())
}

func (r *gpuRouting) at(offset int) uint64 { return uint64(r.memory.Pointer().Add(offset)) }

// sent is where it stands how many tokens each rank has.
func (r *gpuRouting) sent() uint64 {
	return r.at(r.h.routing.described + 4*(2*r.h.Geometry.Local+r.h.Geometry.Ranks))
}

func (r *gpuRouting) tensor(at int, d weft.DType, shape ...int) weft.Tensor {
	return weft.Tensor{Data: pointer(r.memory.Pointer().Add(at)), DType: d, Shape: shape}
}

// checkUncaptured refuses what would end a capture of the stream.
func (r *gpuRouting) checkUncaptured() error {
	captured, err := enginegpu.Capturing(r.stream)
	if err == nil && captured {
		err = weft.Unsupportedf("a capture cannot wait for counts, nor allocate")
	}
	return err
}

// count brings the counts to the host.
func (r *gpuRouting) count(ctx context.Context) error {
	if r.counted && !r.replayed {
		return nil
	}
	h := r.h
	if err := r.checkUncaptured(); err != nil {
		return err
	}
	if err := h.Comm.Wait(ctx, weft.StreamOf(r.stream)); err != nil {
		return err
	}
	raw := make([]byte, 4*h.routing.words)
	if err := h.device.Context().Download(raw, r.memory.Pointer().Add(r.h.routing.described)); err != nil {
		return err
	}
	r.described.read(h, raw)
	r.counted = true
	return nil
}

// measure counts what a dispatch moves.
func (r *gpuRouting) measure() error {
	if err := r.count(context.Background()); err != nil || r.measured && !r.replayed {
		return err
	}
	h, g := r.h, &r.h.Geometry
	home := make([]byte, r.tokens*g.TopK*pairBytes)
	if err := h.device.Context().Download(home, r.memory.Pointer().Add(r.h.routing.home)); err != nil {
		return err
	}
	r.traffic = spec.Traffic{Tokens: r.tokens, Received: int(r.described.rows[0])}
	for t := range r.tokens {
		var ranks weft.RankSet
		for k := range g.TopK {
			what := binary.LittleEndian.Uint32(home[(t*g.TopK+k)*pairBytes:])
			e, selected := what&0xFFFF, what&0xFFFF
			if h.routing.overflows {
				selected = what >> 16 // whether there is room for its row or not
			}
			if selected != 0 {
				r.traffic.Selections++
			}
			if e != 0 {
				ranks = ranks.With(int(e-1) / g.Local)
			}
		}
		ranks = ranks.Minus(*r.masked)
		r.traffic.Visits += ranks.Len()
		r.traffic.RemoteRows += ranks.Without(h.Comm.Rank()).Len()
	}
	r.measured = true
	return nil
}

// Traffic implements [Info]. Like the other counts it waits for the stream unless the counts
// are on the host already.
func (r *gpuRouting) Traffic() spec.Traffic {
	if r.measure() != nil {
		return spec.Traffic{Tokens: r.tokens} // the failure is the communicator's, and sticks to it
	}
	return r.traffic
}

// Rows implements [Info].
func (r *gpuRouting) Rows() int {
	if s := &r.h.Spec; s.Layout.Packed() && s.Counts == spec.HostCounts {
		return r.Received()
	}
	return r.h.Geometry.Rows()
}

// Received implements [Info].
func (r *gpuRouting) Received() int {
	if r.count(context.Background()) != nil {
		return 0
	}
	return int(r.described.rows[0])
}

// RowsKnown implements [Info].
func (r *gpuRouting) RowsKnown() int {
	if !r.counted || r.replayed {
		return 0
	}
	return int(r.described.rows[0])
}

// Demand implements [Info].
func (r *gpuRouting) Demand() int {
	if !r.h.routing.overflows {
		return r.Received() // nothing overflows
	}
	if r.count(context.Background()) != nil {
		return 0
	}
	return int(r.described.wanted[r.h.Comm.Rank()])
}

// Tensor implements [Info].
func (r *gpuRouting) Tensor(part spec.Part) weft.Tensor {
	g, overflows := &r.h.Geometry, r.h.routing.overflows
	words := func(at int, shape ...int) weft.Tensor {
		return r.tensor(r.h.routing.described+4*at, weft.Int32, shape...)
	}
	// Nothing overflows where rows go through slots: what is wanted there is what comes.
	wanted := 2*g.Local + 2*g.Ranks + 2
	switch part {
	case spec.RowDemand:
		if overflows {
			return words(wanted+2*g.Local+r.h.Comm.Rank(), 1)
		}
		return words(2*g.Local+2*g.Ranks, 1)
	case spec.ExpertDemand:
		if overflows {
			return words(wanted, g.Local)
		}
		return words(0, g.Local)
	case spec.PaddedCounts:
		if overflows {
			return words(wanted+g.Local, g.Local)
		}
		return words(0, g.Local)
	case spec.ExpertCounts:
		return words(0, g.Local)
	case spec.ExpertOffsets:
		return words(g.Local, g.Local)
	case spec.SourceCounts:
		return words(2*g.Local, g.Ranks)
	case spec.Ranges:
		return r.tensor(r.h.routing.ranges, weft.Int64, g.Local, g.Ranks)
	}
	// The rest describes rows.
	if r.describeRows() != nil {
		return weft.Tensor{}
	}
	row := func(at int, d weft.DType, shape ...int) weft.Tensor {
		return weft.Tensor{Data: pointer(r.rows.Pointer().Add(at)), DType: d, Shape: shape}
	}
	switch d := &r.description; part {
	case spec.SourceTokens:
		return row(d.tokens, weft.Int32, r.Rows())
	case spec.SourceRanks:
		return row(d.sources, weft.Int32, r.Rows())
	case spec.SourceSelections:
		return row(d.selections, weft.Int32, r.Rows())
	case spec.RowWeights:
		return row(d.weights, weft.Float32, r.Rows())
	case spec.RowExperts:
		return row(d.experts, weft.Int32, r.Rows(), g.TopK)
	default:
		return row(d.expertWeights, weft.Float32, r.Rows(), g.TopK)
	}
}

package ep

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
)

// Copies are tensors of the caller's for what has arrived: those that [Handle.CopyReceived] fills
// in. The zero Tensor leaves a part out. rows is what [Received].Data has, counted as one for all
// experts; with a packed layout a tensor may have more.
type Copies struct {
	// Data is of the type and the shape of [Received].Data.
	Data weft.Tensor
	// Scales are those of [Received].Scales, of the type and the shape that they have there, or
	// would have if the Spec's ScaleOrder were this one.
	Scales     weft.Tensor
	ScaleOrder ScaleOrder
	// SourceTokens and SourceRanks say of each row what the Routing's methods do: int32 [rows].
	SourceTokens, SourceRanks weft.Tensor
	// RowWeights, for the layouts by expert, are fp32 [rows].
	RowWeights weft.Tensor
	// RowExperts and RowSelectionWeights, for the layouts with one row per rank, are the two of
	// [Routing.RowSelections]: int32 and fp32 [rows, top-k].
	RowExperts, RowSelectionWeights weft.Tensor
	// ExpertCounts, Ranges (for the layouts by expert) and SourceCounts are int32 [local experts],
	// int64 [local experts, ranks] and int32 [ranks].
	ExpertCounts, Ranges, SourceCounts weft.Tensor
}

// CopyReceived copies what a dispatch has received to memory of the caller's: the rows that exist,
// pads included, their scales, and what the Routing says of them. All else in the tensors stays as
// it was, behind an expert's last row as in the gaps of the rank-major layout. So it takes the time
// of the rows that are there, not of all places; on GPUs the count of rows, which the host need not
// know, is read from the GPU's memory by one kernel.
//
// It is local. On GPUs it is enqueued where the rows are there, in the stream of the dispatch or in
// one that waits for it, and may be captured; each replay goes by the routing of that time. With a
// nil stream it goes into the communicator's own, and CopyReceived returns when it is done. Tensors
// may overlap neither each other nor what was received; on GPUs Data begins on a multiple of 16
// bytes, Scales on one of 4. A call that is refused has written nothing.
func (h *Handle) CopyReceived(ctx context.Context, s *weft.Stream, r *Received, to Copies) error {
	if h.closed {
		return fmt.Errorf("%s: handle %w", opCopy, weft.ErrClosed)
	}
	if err := h.comm.Begin(opCopy); err != nil {
		return err
	}
	switch {
	case r == nil || r.Routing == nil || r.handle != h:
		return weft.Invalidf("%s: the rows were not received by this handle, or their routing was released", opCopy)
	case r.released:
		return weft.Invalidf("%s: the rows were released; copy before that", opCopy)
	}
	if err := h.checkCopies(r, &to); err != nil {
		return err
	}
	return h.engine.copyReceived(ctx, s, r, &to)
}

// opCopy is what errors call it.
const opCopy = "copy received"

// part is a tensor of [Copies], and what it has to be.
type part struct {
	what  string
	to    weft.Tensor
	dtype weft.DType
	shape []int
	tall  int // the dimension that may be larger if the layout is packed, or -1
}

// checkCopies says what is wrong with the tensors.
func (h *Handle) checkCopies(r *Received, to *Copies) error {
	parts, err := h.parts(r, to)
	if err != nil {
		return err
	}
	for i, p := range parts {
		if err := p.check(h.spec.Layout.packed()); err != nil {
			return err
		}
		for _, other := range parts[:i] {
			if overlap(p.to, other.to) {
				return weft.Invalidf("%s: the %s and the %s overlap; give them memory of their own", opCopy, other.what, p.what)
			}
		}
		if overlap(p.to, r.Data) || overlap(p.to, r.Scales) {
			return weft.Invalidf("%s: the %s lie in the memory that is copied; use that, or give them "+
				"other memory", opCopy, p.what)
		}
	}
	return nil
}

func (p *part) check(packed bool) error {
	good := p.to.DType == p.dtype && len(p.to.Shape) == len(p.shape)
	for i := 0; good && i < len(p.shape); i++ {
		good = p.to.Shape[i] == p.shape[i] || packed && i == p.tall && p.to.Shape[i] > p.shape[i]
	}
	if !good {
		return weft.Invalidf("%s: %s are %v, want %v%v", opCopy, p.what, p.to, p.dtype, p.shape)
	}
	if p.to.Data == nil && p.to.Elems() > 0 {
		return weft.Invalidf("%s: %s have no memory", opCopy, p.what)
	}
	return nil
}

// parts lists the tensors that are given, or says which of them cannot be.
func (h *Handle) parts(r *Received, to *Copies) (parts []part, err error) {
	g, s := &h.geometry, &h.spec
	rows := r.places()
	add := func(what string, t weft.Tensor, d weft.DType, tall int, shape ...int) {
		if !t.IsZero() {
			parts = append(parts, part{what, t, d, shape, tall})
		}
	}
	add("rows", to.Data, r.Data.DType, 0, r.Data.Shape...)
	if !to.Scales.IsZero() {
		if err := h.checkScaleOrder(r, to.ScaleOrder); err != nil {
			return nil, err
		}
		d, above, across := s.scaleShape(r.zone(), to.ScaleOrder)
		shape, tall := []int{above, across}, 0
		if s.Layout == ExpertMajor {
			shape = []int{g.local, above, across}
		} else if to.ScaleOrder == ColumnMajorScales {
			tall = 1
		}
		add("scales", to.Scales, d, tall, shape...)
	}
	add("source tokens", to.SourceTokens, weft.Int32, 0, rows)
	add("source ranks", to.SourceRanks, weft.Int32, 0, rows)
	add("row weights", to.RowWeights, weft.Float32, 0, rows)
	add("row experts", to.RowExperts, weft.Int32, 0, rows, s.TopK)
	add("row selection weights", to.RowSelectionWeights, weft.Float32, 0, rows, s.TopK)
	add("expert counts", to.ExpertCounts, weft.Int32, -1, g.local)
	add("ranges", to.Ranges, weft.Int64, -1, g.local, g.ranks)
	add("source counts", to.SourceCounts, weft.Int32, -1, g.ranks)
	if by := s.Layout.byExpert(); by && !(to.RowExperts.IsZero() && to.RowSelectionWeights.IsZero()) {
		err = weft.Invalidf("%s: %v rows are of one expert each; take RowWeights in place of RowExperts and "+
			"RowSelectionWeights", opCopy, s.Layout)
	} else if !by && !(to.RowWeights.IsZero() && to.Ranges.IsZero()) {
		err = weft.Invalidf("%s: %v rows are of several experts each; take RowExperts and "+
			"RowSelectionWeights in place of RowWeights, and leave Ranges out", opCopy, s.Layout)
	}
	return parts, err
}

func (h *Handle) checkScaleOrder(r *Received, order ScaleOrder) error {
	switch s := &h.spec; {
	case r.Scales.IsZero():
		return weft.Invalidf("%s: scales are given, and %v rows have none here; leave them out", opCopy, s.Payload)
	case order >= scaleOrders:
		return weft.Invalidf("%s: scale order %d, want row-major or column-major", opCopy, order)
	case order == ColumnMajorScales && !s.Payload.fp8():
		return weft.Invalidf("%s: only fp8 payloads have scales whose order can be chosen; take them row-major", opCopy)
	}
	return nil
}

// zone is how many rows have room in a zone of the received tensor, and places in all of them.
func (r *Received) zone() int { return r.Data.Shape[len(r.Data.Shape)-2] }

func (r *Received) places() int {
	if r.handle.spec.Layout == ExpertMajor {
		return r.handle.geometry.local * r.zone()
	}
	return r.zone()
}

// scaleStridesOf says where scales in a tensor stand.
func (h *Handle) scaleStridesOf(scales weft.Tensor, order ScaleOrder) strides {
	rows := 0
	if order == ColumnMajorScales {
		rows = scales.Shape[len(scales.Shape)-1]
	}
	s := scaleStrides(order, uint32(h.spec.scaleBytes()/4), uint32(rows))
	if h.spec.Layout != ExpertMajor {
		s.zone = 0 // however rows are counted, their scales are one matrix
	}
	return s
}

// overlap reports whether two tensors share memory.
func overlap(a, b weft.Tensor) bool {
	p, q := uintptr(a.Data), uintptr(b.Data)
	return p < q+uintptr(b.Bytes()) && q < p+uintptr(a.Bytes()) && a.Elems() > 0 && b.Elems() > 0
}

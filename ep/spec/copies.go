package spec

import "github.com/weftgo/weft"

// Copies are the caller's tensors that ep.Handle.CopyReceived fills in. The zero Tensor leaves a
// part out. rows below is the number of rows of the received data, all experts together. With a
// packed layout a tensor may have more. It may have fewer if the host has no counts: what one of the
// tensors has no room for is not copied to any of them.
type Copies struct {
	// Data has the type and the shape of ep.Received.Data.
	Data weft.Tensor
	// Scales have the type and the shape that ep.Received.Scales would have if the Spec's ScaleOrder
	// were this one.
	Scales     weft.Tensor
	ScaleOrder ScaleOrder
	// SourceTokens and SourceRanks are those of ep.Routing: int32 [rows].
	SourceTokens, SourceRanks weft.Tensor
	// RowWeights, for the layouts by expert, are fp32 [rows].
	RowWeights weft.Tensor
	// RowExperts and RowSelectionWeights, for the layouts with one row per rank, are the tensors of
	// ep.Routing.RowSelections: int32 or int64, and fp32 [rows, top-k].
	RowExperts, RowSelectionWeights weft.Tensor
	// ExpertCounts, Ranges (for the layouts by expert) and SourceCounts are int32 [local experts],
	// int64 [local experts, ranks] and int32 [ranks].
	ExpertCounts, Ranges, SourceCounts weft.Tensor
}

// OpCopy is the operation's name in errors.
const OpCopy = "copy received"

// output is a tensor of [Copies], with the type and shape that it must have.
type output struct {
	what  string
	to    weft.Tensor
	dtype weft.DType
	shape []int
	tall  int // the dimension of rows, of which there may be more or fewer if the layout is packed, or -1
}

// CheckCopies checks the tensors of a copy.
func (h *Base) CheckCopies(r *CopyArgs) error {
	outputs, err := h.outputs(r)
	if err != nil {
		return err
	}
	fewest := r.Capacity()
	if h.Spec.Counts == DeviceCounts {
		fewest = r.Batch.Info.RowsKnown()
	}
	for i, p := range outputs {
		if err := p.check(h.Spec.Layout.Packed(), fewest); err != nil {
			return err
		}
		for _, other := range outputs[:i] {
			if overlap(p.to, other.to) {
				return weft.Invalidf("%s: the %s and the %s overlap; give them memory of their own", OpCopy, other.what, p.what)
			}
		}
		if overlap(p.to, r.Data) || overlap(p.to, r.Scales) {
			return weft.Invalidf("%s: the %s overlap the received batch; give them other memory", OpCopy, p.what)
		}
	}
	return nil
}

func (p *output) check(packed bool, fewest int) error {
	good := p.to.DType == p.dtype && len(p.to.Shape) == len(p.shape)
	for i := 0; good && i < len(p.shape); i++ {
		good = p.to.Shape[i] == p.shape[i] || packed && i == p.tall && p.to.Shape[i] >= fewest
	}
	if !good {
		return weft.Invalidf("%s: %s are %v, want %v%v", OpCopy, p.what, p.to, p.dtype, p.shape)
	}
	if p.to.Data == nil && p.to.Elems() > 0 {
		return weft.Invalidf("%s: %s have no memory", OpCopy, p.what)
	}
	return nil
}

// outputs lists the given tensors. It refuses those that the layout does not have.
func (h *Base) outputs(r *CopyArgs) (outputs []output, err error) {
	g, s := &h.Geometry, &h.Spec
	rows, to := r.Capacity(), &r.To
	add := func(what string, t weft.Tensor, d weft.DType, tall int, shape ...int) {
		if !t.IsZero() {
			outputs = append(outputs, output{what, t, d, shape, tall})
		}
	}
	add("rows", to.Data, r.Data.DType, 0, r.Data.Shape...)
	if !to.Scales.IsZero() {
		if err := h.checkScaleOrder(r, to.ScaleOrder); err != nil {
			return nil, err
		}
		d, above, across := s.ScaleShape(r.Zone(), to.ScaleOrder)
		shape, tall := []int{above, across}, 0
		if s.Layout == ExpertMajor {
			shape = []int{g.Local, above, across}
		} else if to.ScaleOrder == ColumnMajorScales {
			tall = 1
		}
		add("scales", to.Scales, d, tall, shape...)
	}
	add("source tokens", to.SourceTokens, weft.Int32, 0, rows)
	add("source ranks", to.SourceRanks, weft.Int32, 0, rows)
	add("row weights", to.RowWeights, weft.Float32, 0, rows)
	add("row experts", to.RowExperts, expertType(to.RowExperts), 0, rows, s.TopK)
	add("row selection weights", to.RowSelectionWeights, weft.Float32, 0, rows, s.TopK)
	add("expert counts", to.ExpertCounts, weft.Int32, -1, g.Local)
	add("ranges", to.Ranges, weft.Int64, -1, g.Local, g.Ranks)
	add("source counts", to.SourceCounts, weft.Int32, -1, g.Ranks)
	if by := s.Layout.ByExpert(); by && !(to.RowExperts.IsZero() && to.RowSelectionWeights.IsZero()) {
		err = weft.Invalidf("%s: %v rows are of one expert each; take RowWeights in place of RowExperts and "+
			"RowSelectionWeights", OpCopy, s.Layout)
	} else if !by && !(to.RowWeights.IsZero() && to.Ranges.IsZero()) {
		err = weft.Invalidf("%s: %v rows are of several experts each; take RowExperts and "+
			"RowSelectionWeights in place of RowWeights, and leave Ranges out", OpCopy, s.Layout)
	}
	return outputs, err
}

// expertType is the type that experts of rows are to have: PyTorch's indices are int64, and kernels'
// int32.
func expertType(experts weft.Tensor) weft.DType {
	if experts.DType == weft.Int64 {
		return weft.Int64
	}
	return weft.Int32
}

func (h *Base) checkScaleOrder(r *CopyArgs, order ScaleOrder) error {
	switch s := &h.Spec; {
	case r.Scales.IsZero():
		return weft.Invalidf("%s: scales are given, and %v rows have none here; leave them out", OpCopy, s.Payload)
	case order >= scaleOrders:
		return weft.Invalidf("%s: scale order %d, want row-major or column-major", OpCopy, order)
	case order == ColumnMajorScales && !s.Payload.fp8():
		return weft.Invalidf("%s: only fp8 payloads have scales whose order can be chosen; take them row-major", OpCopy)
	}
	return nil
}

// ScaleStridesOf locates the scales in a tensor.
func (h *Base) ScaleStridesOf(scales weft.Tensor, order ScaleOrder) Strides {
	rows := 0
	if order == ColumnMajorScales {
		rows = scales.Shape[len(scales.Shape)-1]
	}
	s := ScaleStrides(order, uint32(h.Spec.ScaleSize()/4), uint32(rows))
	if h.Spec.Layout != ExpertMajor {
		s.Zone = 0 // the scales of all zones are one matrix
	}
	return s
}

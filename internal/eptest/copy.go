package eptest

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// metadata is what a Routing has of its rows, as the reference computes it.
type metadata struct {
	tokens, sources, selections []byte // [rows]
	weights                     []byte // the same
	experts, selectionWeights   []byte // [rows, k]
	counts, ranges, sourceCount []byte
}

// metadata computes it, with so many rows more, in memory that held fill where there are no rows, if it
// is not nil.
func (r *runner) metadata(more int, fill *byte) (s metadata) {
	a, k := &r.p.at[r.comm.Rank()], r.spec.TopK
	n := len(a.rows) + more
	source, rank, selection, weight := make([]int32, n), make([]int32, n), make([]int32, n), make([]float32, n)
	experts, weights := make([]int32, n*k), make([]float32, n*k)
	for i := range n {
		for j := range k {
			experts[i*k+j] = -1
		}
		source[i], rank[i], selection[i] = -1, -1, -1
		if i >= len(a.rows) || a.rows[i].kind != tokenRow {
			continue
		}
		row := a.rows[i]
		source[i], rank[i] = int32(row.token), int32(row.src)
		if row.k >= 0 {
			selection[i], weight[i] = int32(row.k), r.batch.weights[row.src][row.token*k+row.k]
		} else {
			copy(experts[i*k:], row.experts)
			copy(weights[i*k:], row.weights)
		}
		if r.lacks && row.k >= 0 {
			weight[i] = 1
		}
		for j := i * k; r.lacks && j < (i+1)*k; j++ {
			if weights[j] = 0; experts[j] >= 0 {
				weights[j] = 1
			}
		}
	}
	s = metadata{
		tokens: intBytes(source), sources: intBytes(rank), selections: intBytes(selection),
		weights: singleBytes(weight), experts: intBytes(experts), selectionWeights: singleBytes(weights),
		counts: intBytes(a.counts), sourceCount: intBytes(a.sources),
	}
	if fill != nil && r.Wide {
		s.experts = wideBytes(experts)
	}
	for _, zone := range a.ranges {
		for _, v := range zone {
			s.ranges = binary.LittleEndian.AppendUint64(s.ranges, uint64(v))
		}
	}
	for i := range n {
		if fill == nil || i < len(a.rows) && a.rows[i].kind != emptyRow {
			continue
		}
		for _, b := range [][]byte{s.tokens, s.sources, s.weights, s.experts, s.selectionWeights} {
			width := len(b) / n
			copy(b[i*width:], filled(width, *fill))
		}
	}
	return s
}

// copied says where the copies of a rank stand.
type copied struct{ data, scales, tokens, sources, weights, experts, counts, ranges, sourceCounts int }

// moreRows is how many rows the copies have room for besides, where they may.
func (t *trial) moreRows() int {
	if t.spec.Layout == ep.TokenMajor || t.spec.Layout == ep.ExpertPacked {
		return t.spec.TopK % 3
	}
	return 0
}

// idType is the type of experts where it can be chosen.
func (t *trial) idType() weft.DType {
	if t.Wide {
		return weft.Int64
	}
	return weft.Int32
}

// copyOrder is the order in which copies of scales stand.
func (t *trial) copyOrder() ep.ScaleOrder {
	if (t.spec.Payload == ep.FP8 || t.spec.Payload == ep.FP8UE8M0) && t.local()%2 == 1 {
		return ep.ColumnMajorScales - t.spec.ScaleOrder
	}
	return t.spec.ScaleOrder
}

func (t *trial) layOutCopies(a *arena, r int) (c copied) {
	n, local := len(t.p.at[r].rows)+t.moreRows(), t.local()
	of := func(d weft.DType) int { return t.Skew * d.Size() }
	beside := 0
	if !t.Even {
		beside = t.Skew
	}
	c.data, c.scales = a.take(n*t.rowBytes(), 4*beside), a.take(n*t.scaleBytes(), of(weft.Float32))
	c.tokens, c.sources = a.take(4*n, of(weft.Int32)), a.take(4*n, of(weft.Int32))
	c.weights = a.take(4*n*t.perRow(), of(weft.Float32))
	c.experts = a.take(t.idType().Size()*n*t.spec.TopK, of(t.idType()))
	c.counts, c.ranges, c.sourceCounts = a.take(4*local, of(weft.Int32)), a.take(8*local*t.Ranks,
		of(weft.Int64)), a.take(4*t.Ranks, of(weft.Int32))
	return c
}

// copies are the tensors of the copies.
func (r *runner) copies() (to ep.Copies) {
	s, c, more, local := &r.spec, r.off.copies, r.moreRows(), r.local()
	n := len(r.p.at[r.comm.Rank()].rows) + more
	tensor := func(at int, d weft.DType, shape ...int) weft.Tensor {
		return weft.Tensor{Data: r.at(at), DType: d, Shape: shape}
	}
	d, scale, width, scaleWidth := r.rowTypes(false)
	to.ScaleOrder = r.copyOrder()
	if to.ScaleOrder == ep.ColumnMajorScales && s.Payload == ep.FP8UE8M0 {
		scale, scaleWidth = weft.Int32, scaleWidth/4
	}
	of := func(at int, d weft.DType, width int, columns bool) weft.Tensor {
		shape, last := []int{n, width}, 1
		if s.Layout == ep.ExpertMajor {
			shape, last = []int{local, r.capacity(), width}, 2
		}
		if columns {
			shape[last-1], shape[last] = shape[last], shape[last-1]
		}
		return tensor(at, d, shape...)
	}
	to.Data = of(c.data, d, width, false)
	if scale != weft.InvalidDType {
		to.Scales = of(c.scales, scale, scaleWidth, to.ScaleOrder == ep.ColumnMajorScales)
	}
	to.SourceTokens, to.SourceRanks = tensor(c.tokens, weft.Int32, n), tensor(c.sources, weft.Int32, n)
	to.ExpertCounts, to.SourceCounts = tensor(c.counts, weft.Int32, local), tensor(c.sourceCounts, weft.Int32, r.Ranks)
	if r.byExpert() {
		to.RowWeights, to.Ranges = tensor(c.weights, weft.Float32, n), tensor(c.ranges, weft.Int64, local, r.Ranks)
	} else {
		to.RowExperts, to.RowSelectionWeights = tensor(c.experts, r.idType(), n, s.TopK), tensor(c.weights,
			weft.Float32, n, s.TopK)
	}
	return to
}

// wanted is what is to be in a tensor.
type wanted struct {
	what string
	got  weft.Tensor
	want []byte
}

// wantCopies lists the copies of the i-th rows, and what they are in memory that held poison.
func (r *runner) wantCopies(to *ep.Copies, i int) []wanted {
	me, fill := r.comm.Rank(), byte(poison)
	b, p := r.batch, *r.p
	b.spec.ScaleOrder = to.ScaleOrder
	p.at = slices.Clone(p.at)
	p.at[me].rows = append(slices.Clone(p.at[me].rows), make([]row, r.moreRows())...)
	want, s := b.received(&p, me, r.wire[i], poison), r.metadata(r.moreRows(), &fill)
	weights := s.weights
	if !r.byExpert() {
		weights = s.selectionWeights
	}
	return []wanted{
		{"rows", to.Data, want.data},
		{"scales", to.Scales, want.scales},
		{"source tokens", to.SourceTokens, s.tokens},
		{"source ranks", to.SourceRanks, s.sources},
		{"row weights", to.RowWeights, weights},
		{"row experts", to.RowExperts, s.experts},
		{"row selection weights", to.RowSelectionWeights, weights},
		{"expert counts", to.ExpertCounts, s.counts},
		{"ranges", to.Ranges, s.ranges},
		{"source counts", to.SourceCounts, s.sourceCount},
	}
}

// given lists the tensors of copies.
func given(to *ep.Copies) []*weft.Tensor {
	return []*weft.Tensor{
		&to.Data, &to.Scales, &to.SourceTokens, &to.SourceRanks, &to.RowWeights, &to.RowExperts,
		&to.RowSelectionWeights, &to.ExpertCounts, &to.Ranges,
		&to.SourceCounts,
	}
}

// copyReceived copies what has arrived to other memory that holds poison: the first time all there
// is, the second some.
func (r *runner) copyReceived(i int, from *ep.Received) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	to := r.copies()
	for j, t := range given(&to) {
		if i == 1 && r.Seed>>(8+j)&1 == 1 {
			*t = weft.Tensor{}
		}
		if err := r.spoil(*t); err != nil {
			return err
		}
	}
	if err := r.handle.CopyReceived(ctx, r.engine.Stream(r.comm), from, to); err != nil {
		return fmt.Errorf("copies of dispatch %d: %w", i, err)
	}
	return r.sameCopies(&to, i)
}

func (r *runner) sameCopies(to *ep.Copies, i int) error {
	for _, v := range r.wantCopies(to, i) {
		if v.got.IsZero() {
			continue
		}
		if err := r.sameTensor(fmt.Sprintf("copied %s of dispatch %d", v.what, i), v.got, v.got.DType,
			v.got.Shape, v.want); err != nil {
			return err
		}
	}
	return nil
}

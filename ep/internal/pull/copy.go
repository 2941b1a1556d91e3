package pull

import (
	"context"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// span is rows that follow each other in a zone.
type span struct{ zone, first, n int }

// mostSpan bounds it, so that large zones are shared among goroutines too.
const mostSpan = 64

func (h *host) Copy(_ context.Context, s *weft.Stream, r spec.CopyArgs) error {
	if err := onHost(spec.OpCopy, s); err != nil {
		return err
	}
	p, to := h.routingOf(r.Batch), &r.To
	c := copier{rowBytes: h.Spec.RowSize(), CopyArgs: r, spans: p.spans(h.scratch.spans[:0])}
	h.scratch.spans = c.spans
	if !to.Scales.IsZero() {
		c.words, c.zone = h.Spec.ScaleSize()/4, r.Zone()
		c.fromScales, c.toScales = h.ScaleStridesOf(r.Scales, h.Spec.ScaleOrder), h.ScaleStridesOf(to.Scales, to.ScaleOrder)
	}
	if !to.Data.IsZero() || c.words > 0 {
		h.each(len(c.spans), p.kept*(c.rowBytes+4*c.words), &c)
	}
	p.putMetadata(to)
	return nil
}

// spans lists the rows that exist.
func (r *hostRouting) spans(all []span) []span {
	add := func(zone, first, n int) {
		for ; n > 0; first, n = first+mostSpan, n-mostSpan {
			all = append(all, span{zone, first, min(n, mostSpan)})
		}
	}
	switch g := &r.h.Geometry; g.Layout {
	case spec.ExpertMajor:
		for le, n := range r.zones.Kept {
			add(le, int(r.zones.Start[le]), int(n))
		}
	case spec.RankMajor:
		r.eachRow(func(_ int, _ recvToken, l recvRow) { add(0, int(l.row), 1) })
	default:
		add(0, 0, r.kept)
	}
	return all
}

// Extents implements [spec.HostRowEngine].
func (h *host) Extents(b *spec.Batch) (all []spec.Extent) {
	h.scratch.spans = h.routingOf(b).spans(h.scratch.spans[:0])
	for _, s := range h.scratch.spans {
		if k := len(all) - 1; k >= 0 && all[k].Zone == s.zone && all[k].First+all[k].Rows == s.first {
			all[k].Rows += s.n
			continue
		}
		all = append(all, spec.Extent{Zone: s.zone, First: s.first, Rows: s.n})
	}
	return all
}

// copier copies the rows and scales of spans.
type copier struct {
	spec.CopyArgs
	spans                []span
	rowBytes             int
	words, zone          int // of a row's scales, 0 if they are not wanted; rows of a zone
	fromScales, toScales spec.Strides
}

// rows implements [job].
func (c *copier) rows(from, to int) {
	for _, s := range c.spans[from:to] {
		if !c.To.Data.IsZero() {
			at, n := s.first*c.rowBytes, s.n*c.rowBytes
			copy(c.To.Data.Raw()[at:at+n], c.Data.Raw()[at:])
		}
		for row := s.first; c.words > 0 && row < s.first+s.n; row++ {
			c.scales(s.zone*c.zone, row)
		}
	}
}

// scales copies those of a row, of a zone that begins with row first. Words of four bytes may stand
// anywhere.
func (c *copier) scales(first, row int) {
	type word = [4]byte
	f, t := c.fromScales, c.toScales
	for w := range c.words {
		src := int(f.Row)*row + int(f.Zone)*first + int(f.Word)*w
		dst := int(t.Row)*row + int(t.Zone)*first + int(t.Word)*w
		*(*word)(unsafe.Add(c.To.Scales.Data, 4*dst)) = *(*word)(unsafe.Add(c.Scales.Data, 4*src))
	}
}

// putMetadata writes the routing metadata of each row with a token, and the counts.
func (r *hostRouting) putMetadata(to *spec.Copies) {
	for _, l := range [...]struct{ to, from weft.Tensor }{
		{to.ExpertCounts, r.Tensor(spec.ExpertCounts)},
		{to.SourceCounts, r.Tensor(spec.SourceCounts)},
	} {
		if !l.to.IsZero() {
			copy(l.to.Raw(), l.from.Raw())
		}
	}
	if !to.Ranges.IsZero() {
		copy(to.Ranges.Raw(), r.ranges().Raw())
	}
	numbers := func(t weft.Tensor) []int32 {
		if t.IsZero() {
			return nil
		}
		return weft.SliceOf[int32](t)
	}
	tokens, sources := numbers(to.SourceTokens), numbers(to.SourceRanks)
	var weights []float32
	for _, t := range [...]weft.Tensor{to.RowWeights, to.RowSelectionWeights} {
		if !t.IsZero() {
			weights = weft.SliceOf[float32](t)
		}
	}
	if tokens == nil && sources == nil && to.RowExperts.IsZero() && weights == nil {
		return
	}
	r.eachRow(func(src int, a recvToken, l recvRow) {
		if tokens != nil {
			tokens[l.row] = a.token
		}
		if sources != nil {
			sources[l.row] = int32(src)
		}
		if weights != nil && r.h.Spec.Layout.ByExpert() {
			weights[l.row] = l.weight
		}
	})
	switch {
	case r.h.Spec.Layout.ByExpert():
	case to.RowExperts.DType == weft.Int64:
		putSelections(r, weft.SliceOf[int64](to.RowExperts), weights)
	default:
		putSelections(r, numbers(to.RowExperts), weights)
	}
	r.eachPad(func(row int) {
		if tokens != nil {
			tokens[row] = -1
		}
		if sources != nil {
			sources[row] = -1
		}
		if weights != nil {
			weights[row] = 0
		}
	})
}

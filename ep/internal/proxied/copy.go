package proxied

import (
	"context"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// Copy implements [spec.RowEngine]. Rows are copied on the GPU; scales and metadata come by the host.
func (h *handle) Copy(ctx context.Context, s *weft.Stream, a spec.CopyArgs) error {
	const op = spec.OpCopy
	stream, err := h.proxy.EnterLocal(op, s)
	if err != nil {
		return err
	}
	r, room := a.Batch.Info.(*routing), a.Rows()
	return h.finish(ctx, s, h.start(stream, op, func() error {
		b, err := r.here(op)
		if err != nil {
			return err
		}
		return h.copy(b, &a, room)
	}))
}

// copy copies the rows that exist, and that all destinations have room for.
func (h *handle) copy(b *spec.Batch, a *spec.CopyArgs, room int) error {
	rows, n := within(h.host.Extents(b), room), h.Spec.RowSize()
	if to := a.To.Data; !to.IsZero() {
		for _, e := range rows {
			at := e.First * n
			if _, err := h.hand.Copy(to.Pointer().Add(at), a.Data.Pointer().Add(at), e.Rows*n); err != nil {
				return err
			}
		}
	}
	if !a.To.Scales.IsZero() {
		if err := h.copyScales(rows, a); err != nil {
			return err
		}
	}
	return h.copyMetadata(b, rows, a)
}

// within leaves out what is behind the first rows.
func within(all []spec.Extent, rows int) []spec.Extent {
	for i := range all {
		e := &all[i]
		if e.First >= rows {
			return all[:i]
		}
		e.Rows = min(e.Rows, rows-e.First)
	}
	return all
}

// copyScales copies the scales of rows to the order that the caller wants.
func (h *handle) copyScales(rows []spec.Extent, a *spec.CopyArgs) error {
	words, zone := h.Spec.ScaleSize()/4, a.Zone()
	from, to := h.ScaleStridesOf(a.Scales, h.Spec.ScaleOrder), h.ScaleStridesOf(a.To.Scales, a.To.ScaleOrder)
	n := spec.AlignUp(a.Scales.Bytes())
	memory := h.copies.of(n + a.To.Scales.Bytes())
	src, dst := memory[:n], memory[n:]
	if err := h.fetch(scaleMoves(nil, rows, words, zone, from, a.Scales.Pointer(), src)...); err != nil {
		return err
	}
	for _, e := range rows {
		for row := e.First; row < e.First+e.Rows; row++ {
			for w := range words {
				f := int(from.Row)*row + int(from.Zone)*e.Zone*zone + int(from.Word)*w
				t := int(to.Row)*row + int(to.Zone)*e.Zone*zone + int(to.Word)*w
				copy(dst[4*t:4*t+4], src[4*f:])
			}
		}
	}
	return h.store(scaleMoves(nil, rows, words, zone, to, a.To.Scales.Pointer(), dst)...)
}

// copyMetadata copies what a routing says of the rows that exist, and counts.
func (h *handle) copyMetadata(b *spec.Batch, rows []spec.Extent, a *spec.CopyArgs) error {
	to, host := &a.To, spec.Copies{}
	lists := [...]struct {
		to, host *weft.Tensor
		whole    bool
	}{
		{&to.ExpertCounts, &host.ExpertCounts, true},
		{&to.Ranges, &host.Ranges, true},
		{&to.SourceCounts, &host.SourceCounts, true},
		{&to.SourceTokens, &host.SourceTokens, false},
		{&to.SourceRanks, &host.SourceRanks, false},
		{&to.RowWeights, &host.RowWeights, false},
		{&to.RowExperts, &host.RowExperts, false},
		{&to.RowSelectionWeights, &host.RowSelectionWeights, false},
	}
	n := 0
	for _, l := range lists {
		if l.to.IsZero() {
			continue
		}
		*l.host = *l.to
		if !l.whole && h.Spec.Layout.Packed() { // the host engine's has all rows
			l.host.Shape = slices.Clone(l.to.Shape)
			l.host.Shape[0] = b.Info.RowsKnown()
		}
		n += spec.AlignUp(l.host.Bytes())
	}
	if n == 0 {
		return nil
	}
	memory := h.copies.of(n)
	for _, l := range lists {
		if !l.to.IsZero() {
			l.host.Data = pointer(memory)
			memory = memory[spec.AlignUp(l.host.Bytes()):]
		}
	}
	if err := h.host.Copy(context.Background(), nil, spec.CopyArgs{Batch: b, To: host}); err != nil {
		return err
	}
	var moves []move
	for _, l := range lists {
		switch {
		case l.to.IsZero():
		case l.whole:
			moves = append(moves, move{l.to.Pointer(), l.host.Raw()})
		default:
			each := l.to.DType.Size()
			for _, k := range l.to.Shape[1:] {
				each *= k
			}
			moves = h.rowMoves(moves, rows, each, l.to.Pointer(), l.host.Raw())
		}
	}
	return h.store(moves...)
}

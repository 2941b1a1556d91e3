package proxied

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep/spec"
)

// Prepare implements [spec.RowEngine].
func (h *handle) Prepare(ctx context.Context, s *weft.Stream, a spec.PrepareArgs) (*spec.Batch, error) {
	const op = spec.OpPrepare
	stream, err := h.enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	if err := h.CheckRouting(op, a.TopK, a.Weights); err != nil {
		return nil, err
	}
	b, err := h.newBatch(stream, a.TopK.Shape[0], !a.Weights.IsZero())
	if err != nil {
		return nil, err
	}
	r := b.Info.(*routing)
	err = h.start(stream, op, func() error {
		host, err := h.selections(a.TopK, a.Weights)
		if err != nil {
			return err
		}
		return r.prepared(h.host.Prepare(context.Background(), nil, host))
	})
	if err = h.countsAfter(ctx, b, h.finish(ctx, s, err)); err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// finish ends a call, unless it has failed.
func (h *handle) finish(ctx context.Context, s *weft.Stream, err error) error {
	if err != nil {
		return err
	}
	return h.proxy.Finish(ctx, s)
}

// selections takes the operands of a prepare to the host. A selection that is no expert counts as none.
func (x *exchange) selections(topk, weights weft.Tensor) (a spec.PrepareArgs, err error) {
	n := topk.Bytes()
	memory := x.numbers.of(spec.AlignUp(n) + weights.Bytes())
	moves := []move{{topk.Pointer(), memory[:n]}}
	a.TopK = onHost(memory, topk.DType, topk.Shape...)
	if !weights.IsZero() {
		moves = append(moves, move{weights.Pointer(), memory[spec.AlignUp(n):]})
		a.Weights = onHost(memory[spec.AlignUp(n):], weights.DType, weights.Shape...)
	}
	if err := x.fetch(moves...); err != nil {
		return a, err
	}
	of := int64(x.base.Geometry.Experts)
	if topk.DType == weft.Int64 {
		bound(weft.SliceOf[int64](a.TopK), of)
	} else {
		bound(weft.SliceOf[int32](a.TopK), int32(of))
	}
	return a, nil
}

func bound[T int32 | int64](ids []T, experts T) {
	for i, e := range ids {
		if e < 0 || e >= experts {
			ids[i] = -1
		}
	}
}

// pending is a dispatch, of which a second half may be to come.
type pending struct {
	h          *handle
	stream     *weft.Stream
	generation uint64
	batch      *spec.Batch
	prepares   bool
	buffer     int

	second spec.SecondHalf // of the host engine's; nil: nothing was sent
}

// underway is a dispatch that the goroutine has sent and not received.
type underway struct {
	by         *pending // nil: none is
	generation uint64
}

// drop gives back what a dispatch holds that ranks were masked after: its second half may never come.
func (h *handle) drop() {
	u := &h.underway
	if u.by == nil || u.generation == h.Comm.Operations().Generation() {
		return
	}
	if second := u.by.second; second != nil {
		u.by.second = nil
		// It fails, for ranks were masked since, and gives back the host engine's memory.
		if a, err := second.Receive(context.Background()); err == nil {
			h.host.Put(a.Buffer)
		}
	}
	u.by = nil
}

// Dispatch implements [spec.RowEngine].
func (h *handle) Dispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.Arrived, error) {
	p, err := h.send(ctx, s, &a, true)
	if err != nil {
		return spec.Arrived{}, err
	}
	return p.finish(ctx, h.proxy.Finish(ctx, s))
}

// SendDispatch implements [spec.RowEngine].
func (h *handle) SendDispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.SecondHalf, error) {
	p, err := h.send(ctx, s, &a, false)
	if err != nil {
		return nil, err
	}
	h.sent(spec.OpDispatch)
	return p, nil
}

// send enqueues a dispatch: all of it, or the half that sends.
func (h *handle) send(ctx context.Context, s *weft.Stream, a *spec.MoveArgs, all bool) (*pending, error) {
	const op = spec.OpDispatch
	stream, err := h.enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	if err := a.Check(h.Base, op); err != nil {
		return nil, err
	}
	tokens := 0
	if a.Prepares() {
		if err := h.CheckRouting(spec.OpPrepareDispatch, a.TopK, a.Weights); err != nil {
			return nil, err
		}
		tokens = a.TopK.Shape[0]
	} else {
		tokens = a.Batch.Tokens
	}
	if err := h.CheckRows(op, tokens, a); err != nil {
		return nil, err
	}
	p := &pending{h: h, stream: s, generation: h.Comm.Operations().Generation(), batch: a.Batch, prepares: a.Prepares()}
	if p.buffer, err = h.ring.Take(op); err != nil {
		return nil, err
	}
	if p.prepares {
		if p.batch, err = h.newBatch(stream, tokens, !a.Weights.IsZero()); err != nil {
			h.Put(p.buffer)
			return nil, err
		}
	}
	do := p.sender(*a)
	if all {
		sends := do
		do = func() error {
			if err := sends(); err != nil {
				return err
			}
			return p.deliver()
		}
	}
	if err := h.start(stream, op, do); err != nil {
		h.Put(p.buffer)
		if p.prepares {
			p.batch.Release()
		}
		return nil, err
	}
	if a.BringsWeights() {
		p.batch.Weights = spec.WeightsEverywhere
		p.batch.Info.(*routing).brought(stream)
	}
	return p, nil
}

// sender is what the goroutine does to send.
func (p *pending) sender(a spec.MoveArgs) func() error {
	h, r := p.h, p.batch.Info.(*routing)
	return func() (err error) {
		h.drop()
		p.second = nil
		host := spec.MoveArgs{}
		switch {
		case p.prepares:
			s, err := h.selections(a.TopK, a.Weights)
			if err != nil {
				return err
			}
			host.TopK, host.Weights = s.TopK, s.Weights
		case a.BringsWeights():
			memory := h.numbers.of(a.Weights.Bytes())
			if err := h.fetch(move{a.Weights.Pointer(), memory}); err != nil {
				return err
			}
			host.Weights = onHost(memory, weft.Float32, a.Weights.Shape...)
		}
		if !p.prepares {
			if host.Batch, err = r.here(spec.OpDispatch); err != nil {
				return err
			}
		}
		host.Data = onHost(h.tokens.Bytes()[:a.Data.Bytes()], a.Data.DType, a.Data.Shape...)
		moves := []move{{a.Data.Pointer(), host.Data.Raw()}}
		if !a.Scales.IsZero() {
			host.Scales = onHost(h.tokens.Bytes()[h.scalesAt():][:a.Scales.Bytes()], a.Scales.DType, a.Scales.Shape...)
			moves = append(moves, move{a.Scales.Pointer(), host.Scales.Raw()})
		}
		if err := h.fetch(moves...); err != nil {
			return err
		}
		generation := h.Comm.Operations().Generation()
		p.second, err = h.host.SendDispatch(context.Background(), nil, host)
		if err == nil {
			h.underway = underway{p, generation}
			return nil
		}
		if p.prepares {
			return r.prepared(nil, err)
		}
		return err
	}
}

// onHost is a tensor in memory of the host, which has some even where the tensor has none.
func onHost(mem []byte, d weft.DType, shape ...int) weft.Tensor {
	return weft.Tensor{Data: pointer(mem), DType: d, Shape: shape}
}

// deliver is what the goroutine does to receive.
func (p *pending) deliver() error {
	h := p.h
	if p.second == nil {
		if r := p.batch.Info.(*routing); r.overflows() {
			return nil
		}
		return fmt.Errorf("%s: %w: it was not sent", spec.OpDispatch, weft.ErrAborted)
	}
	a, err := p.second.Receive(context.Background())
	p.second, h.underway.by = nil, nil
	if err != nil {
		return err
	}
	defer h.host.Put(a.Buffer)
	if p.prepares {
		if err := p.batch.Info.(*routing).prepared(a.Batch, nil); err != nil {
			return err
		}
	}
	s, to := &h.Spec, h.bufferOf(p.buffer)
	n, rows := s.RowSize(), h.host.Extents(a.Batch)
	memory := bytesOf(a.Memory, int(a.Shape.Bytes))
	moves := h.rowMoves(nil, rows, n, to, memory)
	if words := s.ScaleSize() / 4; words > 0 {
		at, zone := int(a.Shape.ScalesAt), h.zoneRows(a.Shape.Rows)
		strides := h.strides(s.ScaleOrder, zone)
		moves = scaleMoves(moves, rows, words, zone, strides, to.Add(int(h.block.ScalesAt)), memory[at:])
	}
	return h.store(moves...)
}

// overflows says whether the prepare has returned that.
func (r *routing) overflows() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overflow != nil
}

// zoneRows is how many rows a zone of scales has room for, where all rows are so many.
func (h *handle) zoneRows(rows int) int {
	if h.Spec.Layout == spec.ExpertMajor {
		return h.Geometry.Capacity
	}
	return rows
}

// strides locate scales.
func (h *handle) strides(order spec.ScaleOrder, zone int) spec.Strides {
	s := spec.ScaleStrides(order, uint32(h.Spec.ScaleSize()/4), uint32(zone))
	if h.Spec.Layout != spec.ExpertMajor {
		s.Zone = 0 // the scales of all zones are one matrix
	}
	return s
}

// rowMoves adds the moves of rows of n bytes.
func (*exchange) rowMoves(all []move, rows []spec.Extent, n int, gpu cuda.Pointer, host []byte) []move {
	for _, e := range rows {
		at := e.First * n
		all = append(all, move{gpu.Add(at), host[at : at+e.Rows*n]})
	}
	return all
}

// scaleMoves adds the moves of the scales of rows, where both sides have them in one order.
func scaleMoves(all []move, rows []spec.Extent, words, zone int, s spec.Strides, gpu cuda.Pointer, host []byte) []move {
	for _, e := range rows {
		if s.Word == 1 { // a row's stand together
			at := 4 * int(s.Row) * e.First
			all = append(all, move{gpu.Add(at), host[at : at+4*words*e.Rows]})
			continue
		}
		for w := range words {
			at := 4 * (int(s.Row)*e.First + int(s.Zone)*e.Zone*zone + int(s.Word)*w)
			all = append(all, move{gpu.Add(at), host[at : at+4*e.Rows]})
		}
	}
	return all
}

// Receive implements [spec.SecondHalf].
func (p *pending) Receive(ctx context.Context) (spec.Arrived, error) {
	h := p.h
	stream, err := h.resume(ctx, spec.OpDispatch, p.stream, p.generation)
	if err == nil {
		err = h.start(stream, spec.OpDispatch, p.deliver)
	}
	return p.finish(ctx, h.finish(ctx, p.stream, err))
}

// finish waits for the counts of what arrives, if it was prepared with the dispatch, and gives everything back if the
// dispatch has failed.
func (p *pending) finish(ctx context.Context, err error) (spec.Arrived, error) {
	h := p.h
	if p.prepares {
		err = h.countsAfter(ctx, p.batch, err)
	}
	if err != nil {
		h.Put(p.buffer)
		if p.prepares {
			p.batch.Release()
		}
		return spec.Arrived{}, err
	}
	shape, at := h.block, h.bufferOf(p.buffer)
	shape.Rows = p.batch.Info.Rows()
	return spec.Arrived{
		Batch: p.batch, Buffer: p.buffer, Memory: weft.DeviceTensor(at, weft.Uint8).Data, Shape: shape,
		Generation: h.Buffers.Fill(p.buffer, p.batch.Epoch),
	}, nil
}

// countsAfter is awaitCounts, unless the call has failed.
func (h *handle) countsAfter(ctx context.Context, b *spec.Batch, err error) error {
	if err != nil {
		return err
	}
	return h.awaitCounts(ctx, b)
}

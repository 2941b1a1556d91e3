package pull

import (
	"cmp"
	"context"
	"fmt"
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

func (h *host) DispatchBackward(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	const op = spec.OpDispatchBackward
	round, err := h.enter(op)
	if err != nil {
		return err
	}
	c := &h.scratch.gather
	*c = gather{
		h: h, op: op, round: round, call: newCall(callDispatchBackward, a.Batch, !a.OutScalars.IsZero()), SumArgs: a,
	}
	own := cmp.Or(onHost(op, s), h.CheckSum(op, &a))
	if own == nil {
		own = h.CheckScalars(op, &a)
	}
	if own == nil {
		c.r = h.routingOf(a.Batch)
	}
	if err := c.send(ctx, own); err != nil {
		return err
	}
	return c.receive(ctx)
}

func (h *host) CombineBackward(ctx context.Context, s *weft.Stream, a spec.SpreadArgs) error {
	const op = spec.OpCombineBackward
	round, err := h.enter(op)
	if err != nil {
		return err
	}
	own := cmp.Or(onHost(op, s), h.CheckSpread(op, &a))
	if own != nil {
		return h.refuse(ctx, op, own)
	}
	data, borrowed, err := h.offerPlain(ctx, round, a.GradOut, op)
	if err != nil {
		return err
	}
	wantWeights := !a.GradWeights.IsZero()
	h.rounds.PutOperands(data, enginehost.OperandRef{})
	h.rounds.Open(uint64(newCall(callCombineBackward, a.Batch, wantWeights)))
	if err := h.far.ship(ctx, rowsMove{
		op: op, round: round, r: h.routingOf(a.Batch), data: data, rowBytes: h.Spec.OutputSize(),
	}); err != nil {
		return err
	}
	if err := h.awaitCalls(ctx, round, op, nil); err != nil {
		return err
	}
	var dots []float32
	if wantWeights {
		// The scalars of an earlier operation may still be on their way home.
		if err := h.scalars.Claim(ctx, op, round+1); err != nil {
			return err
		}
		dots = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(h.scalars.Window.Bytes()))), h.scalars.Window.Size()/4)
	}
	r := h.routingOf(a.Batch)
	m := &h.scratch.mover
	*m = mover{
		h: h, r: r, round: round, rowBytes: h.Spec.OutputSize(), dst: a.GradRows.Data,
		each: h.gradRow(a.Rows, a.GradRows, dots),
	}
	if err := m.pull(ctx, op); err != nil {
		return err
	}
	if err := h.leave(ctx, op); err != nil {
		return err
	}
	if borrowed {
		if err := h.rounds.AwaitLeft(ctx, op, round); err != nil {
			return err
		}
	}
	if !wantWeights {
		return h.ended(nil)
	}
	return h.ended(h.bringDots(ctx, r, a.GradWeights, op))
}

// gradRow is what combine backward does with a row and the gradient of its token's output: the row's
// gradient, and with dots that of its weight.
func (h *host) gradRow(y, gradRows weft.Tensor, dots []float32) func(l recvRow, src unsafe.Pointer) {
	s := &h.Spec
	t, n := element(s.Output), s.OutputSize()
	return func(l recvRow, src unsafe.Pointer) {
		at := int(l.row) * n
		if dots != nil {
			dots[l.row] = simd.Dot(t, src, unsafe.Add(y.Data, at), s.Hidden) // before the row is written, which may be the same
		}
		dst := unsafe.Add(gradRows.Data, at)
		if s.Weighting == spec.Weighted {
			simd.Scale(t, dst, src, s.Hidden, l.weight)
		} else {
			simd.Copy(dst, src, n, false)
		}
	}
}

// bringDots is the second half of combine backward: the dot products were computed where the
// experts' rows are, and a second move takes them home.
func (h *host) bringDots(ctx context.Context, r *hostRouting, gradWeights weft.Tensor, op string) error {
	h.rounds.PutOperands(enginehost.In(h.scalars.Window, 0, 4), enginehost.OperandRef{})
	round := h.rounds.Open(uint64(newCall(callDotsHome, r.batch, true)))
	if err := h.far.shipDots(ctx, op, round, r); err != nil {
		return err
	}
	if err := h.awaitCalls(ctx, round, op, nil); err != nil {
		return err
	}
	if err := h.fetchScalars(ctx, r, round, gradWeights, op, 0); err != nil {
		return err
	}
	return h.leave(ctx, op)
}

// offerPlain makes rows of the Output type readable for the other ranks.
func (h *host) offerPlain(ctx context.Context, round uint64, x weft.Tensor, op string) (enginehost.OperandRef,
	bool, error,
) {
	stride := uint32(h.Spec.OutputSize())
	if rows, ok := h.rounds.FindHere(x.Data, x.Bytes(), stride); ok {
		return rows, true, nil
	}
	if x.Elems() == 0 {
		return enginehost.OperandRef{}, false, nil
	}
	if err := h.stage.Claim(ctx, op, round); err != nil {
		return enginehost.OperandRef{}, false, err
	}
	simd.Copy(unsafe.Pointer(unsafe.SliceData(h.stage.Window.Bytes())), x.Data, x.Bytes(), false)
	return enginehost.In(h.stage.Window, 0, stride), false, nil
}

// fetchScalars brings one number per selection home, from the first or second operand of the ranks.
func (h *host) fetchScalars(ctx context.Context, r *hostRouting, round uint64, out weft.Tensor, op string,
	which int,
) error {
	k := h.Spec.TopK
	dst := weft.SliceOf[float32](out)
	numbers := h.scratch.numbers
	clear(numbers)
	defer clear(numbers) // it refers to windows
	for _, d := range h.rounds.Live {
		if h.rounds.Far(d) {
			mem, err := h.far.numbersFrom(ctx, op, round, r, d)
			if err != nil {
				return err
			}
			numbers[d] = mem
			continue
		}
		p := h.operand(d, which)
		if p.Window == 0 {
			return h.rounds.Broken(&weft.PeerError{
				Rank: d, Op: op,
				Err: fmt.Errorf("%w: it brings no gradients of weights", weft.ErrMismatch),
			})
		}
		mem, err := h.rounds.Resolve(d, p, op)
		if err != nil {
			return err
		}
		numbers[d] = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/4)
	}
	for i := range dst {
		dst[i] = 0
		row := int(r.rows[i])
		if row < 0 {
			continue
		}
		d := int(r.experts[i]) / h.Geometry.Local
		switch {
		case h.rounds.Far(d):
			row = int(r.nth[i])
		case !h.Spec.Layout.ByExpert():
			row = row*k + i%k
		}
		if numbers[d] == nil {
			continue
		}
		if row >= len(numbers[d]) {
			return h.rounds.Broken(outside(d, op))
		}
		dst[i] = numbers[d][row]
	}
	return nil
}

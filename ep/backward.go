package ep

import (
	"cmp"
	"context"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// DispatchBackward is the gradient of Dispatch: gradX[t] = sum over k of gradRows[row of (t,k)], in the handle's reduction, without weights. gradRows
// has the shape of what Dispatch returned, gradX is [tokens, hidden], both of the Spec's Output type.
//
// gradRowWeights, fp32 [Rows()] (with top-k numbers a row for the layouts with one row per rank), holds the gradients of the weights that arrived
// with the rows; each goes back to its selection in gradWeights, fp32 [tokens, top-k], unchanged; selections that went nowhere get 0. Both are
// absent, on every rank, or neither.
func (h *Handle) DispatchBackward(ctx context.Context, s *weft.Stream, r *Routing, gradRows, gradRowWeights, gradX, gradWeights weft.Tensor) error {
	const op = "dispatch backward"
	epoch, err := h.enter(op)
	if err != nil {
		return err
	}
	c := &h.scratch.gather
	*c = gather{h: h, r: r, op: op, kind: callDispatchBackward, epoch: epoch, y: gradRows, out: gradX, scalars: gradRowWeights, outScalars: gradWeights}
	own := cmp.Or(onHost(op, s), c.check())
	if own == nil {
		own = c.checkScalars()
	}
	if err := c.send(ctx, own); err != nil {
		return err
	}
	return c.receive(ctx)
}

func (c *gather) checkScalars() error {
	h := c.h
	if c.scalars.IsZero() != c.outScalars.IsZero() {
		return weft.Invalidf("%s: gradients of weights go from rows to selections; give both tensors or neither", c.op)
	}
	if c.scalars.IsZero() {
		return nil
	}
	n := c.r.Rows()
	if !h.spec.Layout.byExpert() {
		n *= h.spec.TopK
	}
	if c.scalars.DType != weft.Float32 || c.scalars.Elems() != n || c.scalars.Data == nil && n > 0 {
		return weft.Invalidf("%s: gradients of the rows' weights are %v, want fp32 with %d numbers", c.op, c.scalars, n)
	}
	return checkTensor(c.op, "gradients of weights", c.outScalars, weft.Float32, c.r.tokens, h.spec.TopK)
}

// CombineBackward is the gradient of Combine: gradRows[row of (t,k)] = weight[t,k] * gradOut[t], rounded once (gradOut[t] itself where Combine sums
// plainly), and zeros in pads. gradOut is [tokens, hidden], gradRows, in any memory, has the shape of Combine's y.
//
// With y and gradWeights, which weighted sums allow, gradWeights[t,k], fp32 [tokens, top-k], is the dot product of gradOut[t] and y[row of (t,k)] in
// fp32: element i is added, fused, to lane i mod 64, and the lanes are summed as a tree. Selections that went nowhere get 0. Both are given on every
// rank or on none. Then gradRows may be y itself, whose rows it overwrites once they were read, but may not overlap a part of it.
func (h *Handle) CombineBackward(ctx context.Context, s *weft.Stream, r *Routing, gradOut, y, gradRows, gradWeights weft.Tensor) error {
	const op = "combine backward"
	epoch, err := h.enter(op)
	if err != nil {
		return err
	}
	own := cmp.Or(onHost(op, s), h.checkCombineBackward(r, gradOut, y, gradRows, gradWeights, op))
	var data place
	borrowed := false
	if own == nil {
		if data, borrowed, err = h.offerPlain(ctx, epoch, gradOut, op); err != nil {
			return err
		}
	}
	wantWeights := !gradWeights.IsZero()
	h.post(epoch, newCall(callCombineBackward, r, wantWeights), data, place{}, own)
	if err := h.awaitAll(ctx, epoch, op, own); err != nil {
		return err
	}
	var dots []float32
	if wantWeights {
		// The scalars of an earlier operation may still be on their way home.
		if err := h.scalars.claim(ctx, h, epoch+1, op); err != nil {
			return err
		}
		dots = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(h.scalars.window.Bytes()))), h.scalars.window.Size()/4)
	}
	m := &h.scratch.mover
	*m = mover{h: h, r: r, rowBytes: h.spec.outputBytes(), dst: gradRows.Data, visit: h.gradRow(y, gradRows, dots)}
	if err := m.pull(op); err != nil {
		return err
	}
	if err := h.leave(epoch, op); err != nil {
		return err
	}
	if borrowed {
		if err := h.awaitDone(ctx, epoch, op); err != nil {
			return err
		}
	}
	if !wantWeights {
		return nil
	}
	return h.bringDots(ctx, r, gradWeights, op)
}

// gradRow is what combine backward does with a landing and the gradient of its token's output: the row's gradient, and with dots that of its weight.
func (h *Handle) gradRow(y, gradRows weft.Tensor, dots []float32) func(l landing, src unsafe.Pointer) {
	s := &h.spec
	t, n := element(s.Output), s.outputBytes()
	return func(l landing, src unsafe.Pointer) {
		at := int(l.row) * n
		if dots != nil {
			dots[l.row] = simd.Dot(t, src, unsafe.Add(y.Data, at), s.Hidden) // before the row is written, which may be the same
		}
		dst := unsafe.Add(gradRows.Data, at)
		if s.Sum == Weighted {
			simd.Scale(t, dst, src, s.Hidden, l.weight)
		} else {
			simd.Copy(dst, src, n, false)
		}
	}
}

// bringDots is the second half of combine backward: the dot products were computed where the experts' rows are, and a second move takes them home.
func (h *Handle) bringDots(ctx context.Context, r *Routing, gradWeights weft.Tensor, op string) error {
	h.epoch++
	epoch := h.epoch
	h.post(epoch, newCall(callDotsHome, r, true), place{h.scalars.window.ID(), 0, 4}, place{}, nil)
	if err := h.awaitAll(ctx, epoch, op, nil); err != nil {
		return err
	}
	if err := h.fetchScalars(r, gradWeights, op, (*notice).data); err != nil {
		return err
	}
	return h.leave(epoch, op)
}

func (h *Handle) checkCombineBackward(r *Routing, gradOut, y, gradRows, gradWeights weft.Tensor, op string) error {
	s := &h.spec
	if !s.combines() {
		return weft.Unsupportedf("%s: opaque rows cannot be reduced; give the Spec an Output type and Hidden", op)
	}
	if err := r.check(h, op); err != nil {
		return err
	}
	if err := checkTensor(op, "gradients of the output", gradOut, s.Output, r.tokens, s.Hidden); err != nil {
		return err
	}
	if err := h.checkExpertRows(op, "gradients of rows", r, gradRows); err != nil {
		return err
	}
	if gradWeights.IsZero() {
		return nil
	}
	if s.Sum != Weighted {
		return weft.Invalidf("%s: a plain sum has no weights whose gradients could be asked for", op)
	}
	if err := h.checkExpertRows(op, "rows", r, y); err != nil {
		return err
	}
	if overlapInPart(gradRows, y) {
		return weft.Invalidf("%s: gradients of rows overlap a part of the rows; give them memory of their own, or the very same", op)
	}
	return checkTensor(op, "gradients of weights", gradWeights, weft.Float32, r.tokens, s.TopK)
}

// overlapInPart reports whether two tensors share memory and are not the same.
func overlapInPart(a, b weft.Tensor) bool {
	p, q := uintptr(a.Data), uintptr(b.Data)
	return p != q && p < q+uintptr(b.Bytes()) && q < p+uintptr(a.Bytes())
}

// offerPlain makes rows of the Output type readable for the other ranks.
func (h *Handle) offerPlain(ctx context.Context, epoch uint64, x weft.Tensor, op string) (place, bool, error) {
	stride := uint32(h.spec.outputBytes())
	if w, off, ok := h.comm.Find(x.Data, x.Bytes()); ok {
		return place{w.ID(), uint64(off), stride}, true, nil
	}
	if x.Elems() == 0 {
		return place{}, false, nil
	}
	if err := h.stage.claim(ctx, h, epoch, op); err != nil {
		return place{}, false, err
	}
	simd.Copy(unsafe.Pointer(unsafe.SliceData(h.stage.window.Bytes())), x.Data, x.Bytes(), false)
	return place{h.stage.window.ID(), 0, stride}, false, nil
}

// fetchScalars brings one number per selection home.
func (h *Handle) fetchScalars(r *Routing, out weft.Tensor, op string, at func(*notice) place) error {
	k := h.spec.TopK
	dst := weft.SliceOf[float32](out)
	var numbers [weft.MaxRanks][]float32
	for d, notice := range h.scratch.notices {
		if notice == nil {
			continue
		}
		p := at(notice)
		if p.window == 0 {
			return h.broken(&weft.PeerError{Rank: d, Op: op, Err: fmt.Errorf("%w: it brings no gradients of weights", weft.ErrMismatch)})
		}
		mem, err := h.memory(d, p, op)
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
		d := int(r.experts[i]) / h.geometry.local
		if !h.spec.Layout.byExpert() {
			row = row*k + i%k
		}
		if numbers[d] == nil {
			continue
		}
		if row >= len(numbers[d]) {
			return h.broken(outside(d, op))
		}
		dst[i] = numbers[d][row]
	}
	return nil
}

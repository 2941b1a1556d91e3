package spec

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
)

// CheckRouting checks the arguments of Prepare.
func (h *Base) CheckRouting(op string, topk, weights weft.Tensor) error {
	s := &h.Spec
	if topk.DType != weft.Int32 && topk.DType != weft.Int64 || len(topk.Shape) != 2 ||
		topk.Shape[1] != s.TopK || topk.Shape[0] < 0 {
		return unlike(op, "topk", "is", topk, fmt.Sprintf("int32 or int64 [tokens %d]", s.TopK))
	}
	tokens := topk.Shape[0]
	if tokens > s.MaxTokens {
		return weft.Invalidf("%s: %d tokens, the handle takes at most %d: make a handle with a "+
			"larger MaxTokens", op, tokens, s.MaxTokens)
	}
	if topk.Data == nil && tokens > 0 {
		return weft.Invalidf("%s: topk has no memory", op)
	}
	if weights.IsZero() {
		return nil
	}
	shaped := len(weights.Shape) == 2 && weights.Shape[0] == tokens && weights.Shape[1] == s.TopK
	if weights.DType != weft.Float32 || !shaped || weights.Data == nil && tokens > 0 {
		return weft.Invalidf("%s: weights are %v, want fp32 [%d %d]", op, weights, tokens, s.TopK)
	}
	return nil
}

// CheckRows checks the rows of a dispatch.
func (h *Base) CheckRows(op string, tokens int, x *MoveArgs) error {
	s := &h.Spec
	if x.BringsWeights() {
		if err := CheckTensor(op, "weights", x.Weights, weft.Float32, tokens, s.TopK); err != nil {
			return err
		}
	}
	d, width := s.Payload.DType(), s.Hidden
	scale := weft.InvalidDType
	scaleWidth := s.Hidden / ScaleBlock
	switch s.Payload {
	case FP8:
		scale = weft.Float32
	case FP8UE8M0:
		scale = weft.UE8M0
	case Opaque:
		width = s.RowBytes
		if scaleWidth = s.ScaleBytes; scaleWidth > 0 {
			scale = weft.Uint8
		}
	}
	if s.Quantize != weft.InvalidDType {
		d, scale = s.Quantize, weft.InvalidDType
	}
	if err := CheckTensor(op, "rows", x.Data, d, tokens, width); err != nil {
		return err
	}
	if scale == weft.InvalidDType {
		if !x.Scales.IsZero() {
			return weft.Invalidf("%s: scales are given, %v rows have none here", op, s.Payload)
		}
		return nil
	}
	return CheckTensor(op, "scales", x.Scales, scale, tokens, scaleWidth)
}

func CheckTensor(op, what string, t weft.Tensor, d weft.DType, rows, width int) error {
	if t.DType != d || len(t.Shape) != 2 || t.Shape[0] != rows || t.Shape[1] != width {
		return unlike(op, what, "are", t, fmt.Sprintf("%v[%d %d]", d, rows, width))
	}
	if t.Data == nil && rows*width > 0 {
		return weft.Invalidf("%s: %s have no memory", op, what)
	}
	return nil
}

// unlike says that an operand is missing or is not what is wanted. verb is that of its name: is, are.
func unlike(op, operand, verb string, t weft.Tensor, want string) error {
	if t.IsZero() {
		return weft.Invalidf("%s: no %s given, want %s", op, operand, want)
	}
	return weft.Invalidf("%s: %s %s %v, want %s", op, operand, verb, t, want)
}

// CheckSum checks the arguments of a combine, or of a dispatch backward.
func (h *Base) CheckSum(op string, a *SumArgs) error {
	s := &h.Spec
	if a.Biases > MostBiases {
		return weft.Invalidf("%s: %d biases, want at most %d", op, a.Biases, MostBiases)
	}
	if !s.Combines() {
		return weft.Unsupportedf("%s: opaque rows cannot be reduced; give the Spec an Output type and "+
			"Hidden, and combine rows of that type", op)
	}
	if err := a.Batch.Check(h, op); err != nil {
		return err
	}
	if op == OpCombine && a.Weights.IsZero() {
		if err := a.Batch.CheckWeighted(op, WeightsAtHome); err != nil {
			return err
		}
	}
	if err := h.checkExpertRows(op, "rows", a.Batch, a.Rows, a.Batch.Fewest()); err != nil {
		return err
	}
	if err := CheckTensor(op, "output rows", a.Out, s.Output, a.Batch.Tokens, s.Hidden); err != nil {
		return err
	}
	if overlap(a.Out, a.Rows) {
		return weft.Invalidf("%s: the output rows overlap the rows, which other ranks read; give them "+
			"memory of their own", op)
	}
	for _, b := range a.Bias[:a.Biases] {
		if err := CheckTensor(op, "biases", b, s.Output, a.Batch.Tokens, s.Hidden); err != nil {
			return err
		}
		if overlapInPart(a.Out, b) {
			return weft.Invalidf("%s: the output rows overlap a part of a bias; give them memory of their "+
				"own, or the very same", op)
		}
	}
	return nil
}

// checkExpertRows checks a tensor of expert rows: it has the shape that Dispatch returns, with
// elements of the Output type, or at least fewest of its first rows.
func (h *Base) checkExpertRows(op, what string, r *Batch, t weft.Tensor, fewest int) error {
	s := &h.Spec
	ok := t.DType == s.Output && len(t.Shape) >= 2 && t.Shape[len(t.Shape)-1] == s.Hidden
	elems := t.Elems()
	if n := elems / s.Hidden; !ok || n < fewest || n > r.Info.Rows() {
		if s.Layout == ExpertMajor {
			return unlike(op, what, "are", t, fmt.Sprintf("%v[%d %d %d]", s.Output, h.Geometry.Local,
				h.Geometry.Capacity, s.Hidden))
		}
		return unlike(op, what, "are", t, fmt.Sprintf("%v[%d %d]", s.Output, r.Info.Rows(), s.Hidden))
	}
	if t.Data == nil && elems > 0 {
		return weft.Invalidf("%s: %s have no memory", op, what)
	}
	return h.checkBatch(op, what, r, t, elems*s.Output.Size())
}

// CheckScalars checks the gradients of weights of a dispatch backward.
func (h *Base) CheckScalars(op string, a *SumArgs) error {
	r, scalars, out := a.Batch, a.Scalars, a.OutScalars
	if scalars.IsZero() != out.IsZero() {
		return weft.Invalidf("%s: gradients of weights go from rows to selections; give both tensors or neither", op)
	}
	if scalars.IsZero() {
		return nil
	}
	n, each := scalars.Elems(), 1
	if !h.Spec.Layout.ByExpert() {
		each = h.Spec.TopK
	}
	if scalars.DType != weft.Float32 || n%each != 0 || n < r.Fewest()*each || n > r.Info.Rows()*each ||
		scalars.Data == nil && n > 0 {
		return weft.Invalidf("%s: gradients of the rows' weights are %v, want fp32 with %d numbers", op,
			scalars, r.Info.Rows()*each)
	}
	return CheckTensor(op, "gradients of weights", out, weft.Float32, r.Tokens, h.Spec.TopK)
}

// CheckSpread checks the arguments of a combine backward.
func (h *Base) CheckSpread(op string, a *SpreadArgs) error {
	r := a.Batch
	s := &h.Spec
	if !s.Combines() {
		return weft.Unsupportedf("%s: opaque rows cannot be reduced; give the Spec an Output type and Hidden", op)
	}
	if err := r.Check(h, op); err != nil {
		return err
	}
	if err := r.CheckWeighted(op, WeightsEverywhere); err != nil {
		return err
	}
	if err := CheckTensor(op, "gradients of the output", a.GradOut, s.Output, r.Tokens, s.Hidden); err != nil {
		return err
	}
	if err := h.checkExpertRows(op, "gradients of rows", r, a.GradRows, r.Info.Rows()); err != nil {
		return err
	}
	if overlap(a.GradOut, a.GradRows) {
		return weft.Invalidf("%s: gradients of rows overlap those of the output, which other ranks read; "+
			"give them memory of their own", op)
	}
	if a.GradWeights.IsZero() {
		return nil
	}
	if s.Weighting != Weighted {
		return weft.Invalidf("%s: plain weighting has no weights whose gradients could be asked for", op)
	}
	if err := h.checkExpertRows(op, "rows", r, a.Rows, r.Info.Rows()); err != nil {
		return err
	}
	if overlapInPart(a.GradRows, a.Rows) {
		return weft.Invalidf("%s: gradients of rows overlap a part of the rows; give them memory of their "+
			"own, or the very same", op)
	}
	return CheckTensor(op, "gradients of weights", a.GradWeights, weft.Float32, r.Tokens, s.TopK)
}

// overlapInPart reports whether two tensors share memory and are not the same.
func overlapInPart(a, b weft.Tensor) bool {
	return a.Data != b.Data && overlap(a, b)
}

// NoGeneration is the [weft.Tensor].Generation of rows that were released: it matches no batch.
const NoGeneration = engine.NoGeneration

// checkBatch refuses rows in a receive buffer that does not hold the Routing's batch any more, or is
// another handle's. bytes is the size of the rows.
func (h *Base) checkBatch(op, what string, r *Batch, t weft.Tensor, bytes int) error {
	holds, foreign := "", "holds another routing's batch"
	content := h.Buffers.Check(uintptr(t.Data), uintptr(bytes), r.Epoch, t.Generation)
	if content == engine.None {
		content = h.Comm.Operations().Shelf().Check(h.Buffers, uintptr(t.Data), uintptr(bytes))
		foreign = "holds another handle's batch"
	}
	switch content {
	case engine.Released:
		holds = "was released"
	case engine.Foreign:
		holds = foreign
	case engine.Later:
		holds = "holds another batch of the routing by now"
	default:
		return nil
	}
	return weft.Invalidf("%s: the %s lie in a receive buffer that %s; pass rows that were received by "+
		"this routing and not released, or memory of your own",
		op, what, holds)
}

// overlap reports whether two tensors share memory.
func overlap(a, b weft.Tensor) bool {
	p, q := uintptr(a.Data), uintptr(b.Data)
	return p < q+uintptr(b.Bytes()) && q < p+uintptr(a.Bytes()) && a.Elems() > 0 && b.Elems() > 0
}

// Selections reads a tensor of expert indices, int32 or int64, one at a time.
type Selections struct {
	narrow []int32
	wide   []int64
}

func SelectionsOf(t weft.Tensor) Selections {
	n := t.Elems()
	if t.DType == weft.Int64 {
		return Selections{wide: unsafe.Slice((*int64)(t.Data), n)}
	}
	return Selections{narrow: unsafe.Slice((*int32)(t.Data), n)}
}

func (s Selections) At(i int) int64 {
	if s.wide != nil {
		return s.wide[i]
	}
	return int64(s.narrow[i])
}

package ep

import (
	"context"

	"github.com/weftgo/weft"
)

// Prepare turns routing into a [Routing]: topk holds the experts that each of this rank's tokens
// selects, int32 or int64 [tokens, top-k], -1 for none, the experts of a token distinct, which the
// host engine checks and GPUs take on trust (see the package's Engines); weights their weights,
// fp32 [tokens, top-k], which may be absent if the Spec sums plainly, or if they come later: with
// the rows of a Dispatch, or by [Handle.Weigh]. Both may be changed once Prepare has returned, or,
// with a stream, by what comes after it there.
func (h *Handle) Prepare(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor) (*Routing, error) {
	return h.engine.prepare(ctx, s, topk, weights)
}

// checkRouting says what is wrong with the arguments of Prepare.
func (h *Handle) checkRouting(op string, topk, weights weft.Tensor) error {
	s := &h.spec
	if topk.DType != weft.Int32 && topk.DType != weft.Int64 || len(topk.Shape) != 2 ||
		topk.Shape[1] != s.TopK || topk.Shape[0] < 0 {
		return weft.Invalidf("%s: top-k experts are %v, want int32 or int64 [tokens %d]", op, topk, s.TopK)
	}
	tokens := topk.Shape[0]
	if tokens > s.MaxTokens {
		return weft.Unsupportedf("%s: %d tokens, the handle takes at most %d: make a handle with a "+
			"larger MaxTokens", op, tokens, s.MaxTokens)
	}
	if topk.Data == nil && tokens > 0 {
		return weft.Invalidf("%s: top-k experts have no memory", op)
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

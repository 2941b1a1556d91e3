package spec

import "github.com/weftgo/weft"

// OpCount is what errors call the layout step.
const OpCount = "count routing"

// CheckPlaces says what is wrong with where experts are, of which at most so many ranks may have some.
func CheckPlaces(experts, ranks, ranksPerNode, most int) error {
	if ranks < 1 || ranks > most || experts < 1 || experts > MaxExperts {
		return weft.Invalidf("%s: %d experts on %d ranks: want at most %d on %d", OpCount, experts, ranks,
			MaxExperts, most)
	}
	if experts%ranks != 0 || ranksPerNode < 1 || ranks%ranksPerNode != 0 {
		return weft.Invalidf("%s: %d experts on %d ranks, %d a node: want experts in equal shares, and "+
			"whole nodes", OpCount, experts, ranks, ranksPerNode)
	}
	return nil
}

// CheckCounted says what is wrong with selections that are to be counted.
func CheckCounted(topk weft.Tensor) error {
	if topk.DType != weft.Int32 && topk.DType != weft.Int64 || len(topk.Shape) != 2 {
		return weft.Invalidf("%s: experts are %v, want int32 or int64 [tokens top-k]", OpCount, topk)
	}
	tokens, k := topk.Shape[0], topk.Shape[1]
	if tokens < 0 || tokens > maxTokens || k < 1 || k > MaxTopK {
		return weft.Invalidf("%s: experts are %v, want at most %d tokens and 1 to %d selections of each",
			OpCount, topk, maxTokens, MaxTopK)
	}
	if topk.Data == nil && tokens > 0 {
		return weft.Invalidf("%s: experts have no memory", OpCount)
	}
	return nil
}

// DeviceCensus is where a [Counter] puts what a [Census] says: tensors of the caller's in the
// memory of its GPU. A tensor that is absent is not wanted; at least one is. They need no value
// before, must not overlap each other or the selections, and are borrowed until the stream has
// passed the call.
type DeviceCensus struct {
	RankTokens       weft.Tensor // int32 [ranks]
	NodeTokens       weft.Tensor // int32 [ranks / ranksPerNode]
	ExpertSelections weft.Tensor // int32 [experts]
	TokenInRank      weft.Tensor // uint8 [tokens, ranks]: 1 if the token goes to the rank, else 0, as a bool has it
}

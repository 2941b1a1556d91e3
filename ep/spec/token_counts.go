package spec

import (
	"cmp"

	"github.com/weftgo/weft"
)

// OpCount is the layout step's name in errors.
const OpCount = "count routing"

// TokenCounts says where one rank's tokens go. It follows from the selections alone, without any
// exchange.
type TokenCounts struct {
	// RankTokens counts, for each rank, the tokens with at least one expert there: int32 [ranks].
	RankTokens []int32
	// NodeTokens counts the same for each node of ranksPerNode ranks: int32 [ranks / ranksPerNode].
	NodeTokens []int32
	// ExpertSelections counts the selections of each expert: int32 [experts].
	ExpertSelections []int32
	// TokenInRank says whether a token goes to a rank: [tokens, ranks].
	TokenInRank []bool
}

// DeviceTokenCounts are the tensors that an ep.TokenCounter writes, in the memory of its GPU: the
// device's form of [TokenCounts]. At least one is given; an absent tensor is not counted. They need
// no initial value, must not overlap each other or the selections, and are borrowed until the
// stream has passed the call.
type DeviceTokenCounts struct {
	RankTokens       weft.Tensor // int32 [ranks]
	NodeTokens       weft.Tensor // int32 [ranks / ranksPerNode]
	ExpertSelections weft.Tensor // int32 [experts]
	TokenInRank      weft.Tensor // uint8 [tokens, ranks]: 1 if the token goes to the rank, else 0, as a bool has it
}

// CountRouting counts where tokens go: the layout step alone. topk is int32 or int64 [tokens,
// top-k] on the host, -1 for none. It is local: any rank may call it at any time. Several
// selections of one token on the same rank count once in RankTokens, and several on the same node
// once in NodeTokens. It refuses what no [Spec] has, such as more than 1,024 ranks or 32 selections
// a token. An ep.TokenCounter does the same on a GPU.
func CountRouting(topk weft.Tensor, experts, ranks, ranksPerNode int) (*TokenCounts, error) {
	if err := cmp.Or(CheckExperts(experts, ranks, ranksPerNode, weft.MaxRanks), CheckCounted(topk)); err != nil {
		return nil, err
	}
	tokens, k := topk.Shape[0], topk.Shape[1]
	sel := SelectionsOf(topk)
	c := &TokenCounts{
		RankTokens:       make([]int32, ranks),
		NodeTokens:       make([]int32, ranks/ranksPerNode),
		ExpertSelections: make([]int32, experts),
		TokenInRank:      make([]bool, tokens*ranks),
	}
	local := experts / ranks
	for t := range tokens {
		in := c.TokenInRank[t*ranks : (t+1)*ranks]
		for j := range k {
			e := sel.At(t*k + j)
			if e == -1 {
				continue
			}
			if e < 0 || e >= int64(experts) {
				return nil, weft.Invalidf("%s: token %d selects expert %d of %d; -1 stands for none", OpCount, t, e, experts)
			}
			c.ExpertSelections[e]++
			in[int(e)/local] = true
		}
		node := -1
		for r, goes := range in {
			if !goes {
				continue
			}
			c.RankTokens[r]++
			if n := r / ranksPerNode; n != node {
				node = n
				c.NodeTokens[n]++
			}
		}
	}
	return c, nil
}

// CheckExperts checks experts that so many ranks have in equal shares; most is the largest number of
// ranks.
func CheckExperts(experts, ranks, ranksPerNode, most int) error {
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

// CheckCounted checks the selections that a call counts.
func CheckCounted(topk weft.Tensor) error {
	if topk.DType != weft.Int32 && topk.DType != weft.Int64 || len(topk.Shape) != 2 {
		return unlike(OpCount, "topk", "is", topk, "int32 or int64 [tokens top-k]")
	}
	tokens, k := topk.Shape[0], topk.Shape[1]
	if tokens < 0 || tokens > maxTokens || k < 1 || k > MaxTopK {
		return weft.Invalidf("%s: topk is %v, want at most %d tokens and 1 to %d selections of each",
			OpCount, topk, maxTokens, MaxTopK)
	}
	if topk.Data == nil && tokens > 0 {
		return weft.Invalidf("%s: experts have no memory", OpCount)
	}
	return nil
}

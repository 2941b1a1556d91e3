package spec

import (
	"cmp"

	"github.com/weftgo/weft"
)

// Census is what routing alone says, without any exchange: where one rank's tokens want to go.
type Census struct {
	// RankTokens counts, for each rank, the tokens with at least one expert there: int32 [ranks].
	RankTokens []int32
	// NodeTokens counts the same for each node of ranksPerNode ranks: int32 [ranks / ranksPerNode].
	NodeTokens []int32
	// ExpertSelections counts the selections of each expert: int32 [experts].
	ExpertSelections []int32
	// TokenInRank says whether a token goes to a rank: [tokens, ranks].
	TokenInRank []bool
}

// CountRouting is the layout step alone: it counts where tokens go. topk is int32 or int64 [tokens,
// top-k] on the host, -1 for none; it is local and may be called by any rank at any time. Several
// selections of one token on the same rank count once in RankTokens, as do those on the same node
// in NodeTokens. What a [Spec] cannot have, such as more than 1,024 ranks or 32 selections a token, is
// refused. An ep.Counter does the same on a GPU.
func CountRouting(topk weft.Tensor, experts, ranks, ranksPerNode int) (*Census, error) {
	if err := cmp.Or(CheckPlaces(experts, ranks, ranksPerNode, weft.MaxRanks), CheckCounted(topk)); err != nil {
		return nil, err
	}
	tokens, k := topk.Shape[0], topk.Shape[1]
	sel := SelectionsOf(topk)
	c := &Census{
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

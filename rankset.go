package weft

import (
	"math/bits"

	"github.com/weftgo/weft/internal/rankset"
)

// RankSetWords is how many words a [RankSet] has, of 64 ranks each.
const RankSetWords = rankset.Words

// MaxRanks is the most ranks that one communicator can have. On GPUs it can have at most
// [device.MaxRanks].
const MaxRanks = rankset.Max

// RankSet is a set of ranks of one communicator, from 0 to [MaxRanks]-1. It is a value: methods
// return a new set, sets of the same ranks are equal with ==, and none of them allocates. The zero
// value is the empty set.
//
//	Has(rank int) bool                 whether the rank is a member
//	With(ranks ...int) RankSet         the set with some more ranks
//	Without(ranks ...int) RankSet      the set without some ranks
//	Union(o RankSet) RankSet           the ranks that are in either set
//	Minus(o RankSet) RankSet           the ranks that are not in the other set
//	Contains(o RankSet) bool           whether all members of the other set are members of this one
//	Empty() bool                       whether it has no member
//	Len() int                          the number of members
//	Lowest() int                       the lowest member, or -1
//	All() iter.Seq[int]                the members in ascending order
//	Words() [RankSetWords]uint64       rank r is bit r%64 of word r/64
//	String() string                    for example [0 2 5-9]
//
// A rank that no communicator can have is never a member, and adding one panics as a slice index
// out of range does.
type RankSet = rankset.Set

// RankSetOf returns the set of the given ranks.
func RankSetOf(ranks ...int) RankSet { return rankset.Of(ranks...) }

// RankSetFromWords returns the set that Words gives: rank r is bit r%64 of word r/64. Words beyond
// the given ones are empty; those beyond [RankSetWords] have to be.
func RankSetFromWords(words []uint64) (RankSet, error) {
	for i, w := range words[min(RankSetWords, len(words)):] {
		if w != 0 {
			rank := (RankSetWords+i)*64 + bits.TrailingZeros64(w)
			return RankSet{}, Invalidf("rank %d: a communicator has at most %d ranks", rank, MaxRanks)
		}
	}
	var s [RankSetWords]uint64
	copy(s[:], words)
	return rankset.FromWords(s), nil
}

// Importers inline methods of a type of another package's only where this package has inlined them.
// Without that, to go through a set allocates.
var _ = func(s RankSet) (n int) {
	for r := range s.Union(s).Minus(s).With(0).Without(0).All() {
		n += r
	}
	if s.Has(0) && s.Contains(s) && !s.Empty() {
		n += s.Len() + s.Lowest()
	}
	return n
}

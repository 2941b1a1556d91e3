package weft

import (
	"fmt"
	"iter"
	"math/bits"
	"strings"
	"sync/atomic"
)

// RankSetWords is how many words a [RankSet] has, of 64 ranks each.
const RankSetWords = 16

// MaxRanks is the most ranks that one communicator can have. On GPUs it can have at most
// [device.MaxRanks].
const MaxRanks = 64 * RankSetWords

// RankSet is a set of ranks of one communicator, from 0 to [MaxRanks]-1. It is a value: methods
// return a new set, sets of the same ranks are equal with ==, and none of them allocates. The zero
// value is the empty set.
//
// A rank that no communicator can have is never a member, and adding one panics as a slice index
// out of range does.
type RankSet struct {
	words [RankSetWords]uint64 // bit r%64 of word r/64
}

// RankSetOf returns the set of the given ranks.
func RankSetOf(ranks ...int) RankSet { return RankSet{}.With(ranks...) }

// RankSetFromWords returns the set that Words gives: rank r is bit r%64 of word r/64. Words beyond
// the given ones are empty; those beyond [RankSetWords] have to be.
func RankSetFromWords(words []uint64) (RankSet, error) {
	var s RankSet
	for i, w := range words[min(RankSetWords, len(words)):] {
		if w != 0 {
			rank := (RankSetWords+i)*64 + bits.TrailingZeros64(w)
			return RankSet{}, Invalidf("rank %d: a communicator has at most %d ranks", rank, MaxRanks)
		}
	}
	copy(s.words[:], words)
	return s, nil
}

// ranksBelow returns the ranks from 0 to n-1.
func ranksBelow(n int) (s RankSet) {
	for i := range s.words[:(n+63)/64] {
		s.words[i] = ^uint64(0) >> uint(max(0, 64*(i+1)-n))
	}
	return s
}

// Words returns the set in words: rank r is bit r%64 of word r/64.
func (s RankSet) Words() [RankSetWords]uint64 { return s.words }

// Has reports whether the rank is a member.
func (s RankSet) Has(rank int) bool { return s.has(rank) }

// has is Has without a copy of the set.
func (s *RankSet) has(rank int) bool {
	return s != nil && uint(rank) < MaxRanks && s.words[uint(rank)/64]>>(uint(rank)%64)&1 != 0
}

// With returns the set with some more ranks.
func (s RankSet) With(ranks ...int) RankSet {
	for _, r := range ranks {
		s.words[uint(r)/64] |= 1 << (uint(r) % 64)
	}
	return s
}

// Without returns the set without some ranks.
func (s RankSet) Without(ranks ...int) RankSet {
	for _, r := range ranks {
		if uint(r) < MaxRanks {
			s.words[uint(r)/64] &^= 1 << (uint(r) % 64)
		}
	}
	return s
}

// Union returns the ranks that are in either set.
func (s RankSet) Union(o RankSet) RankSet {
	for i, w := range o.words {
		s.words[i] |= w
	}
	return s
}

// Minus returns the ranks that are not in the other set.
func (s RankSet) Minus(o RankSet) RankSet {
	for i, w := range o.words {
		s.words[i] &^= w
	}
	return s
}

// Contains reports whether all members of the other set are members of this one.
func (s RankSet) Contains(o RankSet) bool { return o.Minus(s).Empty() }

// Empty reports whether the set has no member.
func (s RankSet) Empty() bool { return s == RankSet{} }

// Len is the number of members.
func (s RankSet) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Lowest is the lowest member, or -1 if there is none.
func (s RankSet) Lowest() int {
	for i, w := range s.words {
		if w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// All iterates over the members in ascending order.
func (s RankSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(64*i + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// String lists the members, for example [0 2 5-9]: three and more in a row are a range.
func (s RankSet) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for r := 0; r < MaxRanks; r++ {
		if !s.Has(r) {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(' ')
		}
		last := r
		for s.Has(last + 1) {
			last++
		}
		if last-r < 2 {
			last = r
			fmt.Fprintf(&b, "%d", r)
		} else {
			fmt.Fprintf(&b, "%d-%d", r, last)
		}
		r = last
	}
	b.WriteByte(']')
	return b.String()
}

// sharedRankSet is a set that several goroutines, or processes, read and write word by word.
// Readers that need all words of one moment have to know otherwise that no one writes.
type sharedRankSet [RankSetWords]atomic.Uint64

func (s *sharedRankSet) load() (set RankSet) {
	for i := range s {
		set.words[i] = s[i].Load()
	}
	return set
}

func (s *sharedRankSet) store(set RankSet) {
	for i, w := range set.words {
		s[i].Store(w)
	}
}

func (s *sharedRankSet) add(rank int) { s[rank/64].Or(1 << uint(rank%64)) }

func (s *sharedRankSet) has(rank int) bool { return s[rank/64].Load()>>uint(rank%64)&1 != 0 }

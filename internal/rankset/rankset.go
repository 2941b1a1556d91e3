// Package rankset has sets of ranks, for what lies below the root. The root documents them for users.
package rankset

import (
	"fmt"
	"iter"
	"math/bits"
	"strings"
	"sync/atomic"
)

// Words is how many words a [Set] has, of 64 ranks each, and Max the most ranks.
const (
	Words = 16
	Max   = 64 * Words
)

// Set is a set of ranks of one communicator, from 0 to [Max]-1. It is a value: methods
// return a new set, sets of the same ranks are equal with ==, and none of them allocates. The zero
// value is the empty set.
//
// A rank that no communicator can have is never a member, and adding one panics as a slice index
// out of range does.
type Set struct {
	words [Words]uint64 // bit r%64 of word r/64
}

// Of returns the set of the given ranks.
func Of(ranks ...int) Set { return Set{}.With(ranks...) }

// FromWords returns the set whose words these are.
func FromWords(words [Words]uint64) Set { return Set{words} }

// Below returns the ranks from 0 to n-1.
func Below(n int) (s Set) {
	for i := range s.words[:(n+63)/64] {
		s.words[i] = ^uint64(0) >> uint(max(0, 64*(i+1)-n))
	}
	return s
}

// Words returns the set in words: rank r is bit r%64 of word r/64.
func (s Set) Words() [Words]uint64 { return s.words }

// Has reports whether the rank is a member.
func (s Set) Has(rank int) bool { return Holds(&s, rank) }

// Holds is Has without a copy of the set.
func Holds(s *Set, rank int) bool {
	return uint(rank) < Max && s.words[uint(rank)/64]>>(uint(rank)%64)&1 != 0
}

// With returns the set with some more ranks.
func (s Set) With(ranks ...int) Set {
	for _, r := range ranks {
		s.words[uint(r)/64] |= 1 << (uint(r) % 64)
	}
	return s
}

// Without returns the set without some ranks.
func (s Set) Without(ranks ...int) Set {
	for _, r := range ranks {
		if uint(r) < Max {
			s.words[uint(r)/64] &^= 1 << (uint(r) % 64)
		}
	}
	return s
}

// Union returns the ranks that are in either set.
func (s Set) Union(o Set) Set {
	for i, w := range o.words {
		s.words[i] |= w
	}
	return s
}

// Minus returns the ranks that are not in the other set.
func (s Set) Minus(o Set) Set {
	for i, w := range o.words {
		s.words[i] &^= w
	}
	return s
}

// Contains reports whether all members of the other set are members of this one.
func (s Set) Contains(o Set) bool { return o.Minus(s).Empty() }

// Empty reports whether the set has no member.
func (s Set) Empty() bool { return s == Set{} }

// Len is the number of members.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Lowest is the lowest member, or -1 if there is none.
func (s Set) Lowest() int {
	for i, w := range s.words {
		if w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// All iterates over the members in ascending order.
func (s Set) All() iter.Seq[int] {
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
func (s Set) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for r := 0; r < Max; r++ {
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

// Shared is a set that several goroutines, or processes, read and write word by word. Readers that
// need all words of one moment read while no goroutine and no process writes.
type Shared [Words]atomic.Uint64

// Load returns the set.
func (s *Shared) Load() Set {
	var set Set
	for i := range s {
		set.words[i] = s[i].Load()
	}
	return set
}

// Store replaces the set.
func (s *Shared) Store(set Set) {
	for i, w := range set.words {
		s[i].Store(w)
	}
}

// Add adds a rank.
func (s *Shared) Add(rank int) { s[rank/64].Or(1 << uint(rank%64)) }

// Has reports whether the rank is a member.
func (s *Shared) Has(rank int) bool { return s[rank/64].Load()>>uint(rank%64)&1 != 0 }

package pull

import (
	"iter"
	"math/bits"
)

// bitset is a set of ranks that is filled anew for every token: of as few words as the ranks take.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (s bitset) add(i int)      { s[uint(i)/64] |= 1 << (uint(i) % 64) }
func (s bitset) has(i int) bool { return s[uint(i)/64]>>(uint(i)%64)&1 != 0 }

// all iterates over the members in ascending order.
func (s bitset) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s {
			for ; w != 0; w &= w - 1 {
				if !yield(64*i + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

package fabric

import (
	"math/bits"
	"testing"
)

// TestKeys: of whatever length, keys differ from each other and fit; long ones say nothing of what they are made from.
func TestKeys(t *testing.T) {
	for bytes, n := range map[int]int{1: 255, 2: 1<<16 - 1, 3: 1 << 16, 4: 1 << 16, 7: 1 << 16, 8: 1 << 16} {
		k := newKeys(bytes)
		had := make(map[uint64]bool, n)
		set := 0
		for i := range n {
			key := k.next(uint32(i / 100))
			if had[key] {
				t.Fatalf("%d bytes: key %d is an old one, %#x", bytes, i, key)
			}
			if had[key] = true; bits.Len64(key) > 8*bytes {
				t.Fatalf("%d bytes: key %#x", bytes, key)
			}
			set += bits.OnesCount64(key)
		}
		if mean := float64(set) / float64(n) / float64(bytes); mean < 3.8 || mean > 4.2 {
			t.Errorf("%d bytes: %.2f bits of 8 are set", bytes, mean)
		}
	}
	a, b := newKeys(8), newKeys(8)
	if a.next(1) == b.next(1) {
		t.Error("two domains begin with the same key")
	}
}

package fabric

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestSequence marks numbers in random orders that stay within the span, some of them twice.
func TestSequence(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var s sequence
	seen := map[uint64]bool{}
	first := uint64(0)
	for range 200_000 {
		n := first + random.Uint64N(span)
		if random.IntN(4) > 0 {
			n = first + random.Uint64N(3)
		}
		if got := s.mark(n); got == seen[n] {
			t.Fatalf("mark(%d) is %v", n, got)
		}
		seen[n] = true
		for seen[first] {
			first++
		}
		if s.next != first {
			t.Fatalf("the first missing is %d, want %d", s.next, first)
		}
	}
	if s.mark(s.next+span) || s.mark(s.next-1) {
		t.Error("a number out of reach was recorded")
	}
}

// TestNearest: a number is found by its low bits if it is less than half their range away.
func TestNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.UintRange(2, 20).Draw(t, "bits")
		base := rapid.Uint64Range(0, 1<<40).Draw(t, "base")
		away := rapid.Int64Range(-(1<<(bits-1))+1, 1<<(bits-1)-1).Draw(t, "away")
		n := base + uint64(away)
		if away < 0 && base < uint64(-away) {
			t.Skip("no such number")
		}
		if got := nearest(base, uint32(n)&(1<<bits-1), bits); got != n {
			t.Fatalf("nearest(%d, low bits of %d) is %d", base, n, got)
		}
	})
}

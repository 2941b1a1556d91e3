package channel

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSequence: numbers grow, through generations too, and two ranks that number the last
// generation's operations alike have the same numbers whatever they did before.
func TestSequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a, b Sequence
		generation, last := uint64(0), uint64(0)
		for range rapid.IntRange(1, 8).Draw(t, "generations") {
			for range rapid.IntRange(0, 5).Draw(t, "operations") {
				n := a.Next()
				if n <= last || a.Last() != n || !a.Covers(n) || a.Begin(generation) {
					t.Fatalf("%#x after %#x", n, last)
				}
				last = n
			}
			generation += rapid.Uint64Range(1, 1<<20).Draw(t, "step")
			if !a.Begin(generation) || !b.Begin(generation) || a.Last() < last || a.Covers(last) {
				t.Fatalf("generation %d begins at %#x, after %#x", generation, a.Last(), last)
			}
		}
		if x, y := a.Next(), b.Next(); x != y {
			t.Fatalf("%#x on one rank, %#x on the other", x, y)
		}
	})
}

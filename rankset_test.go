package weft_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"pgregory.net/rapid"
)

// TestRankSet compares sets with maps.
func TestRankSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) (weft.RankSet, map[int]bool) {
			ranks := rapid.SliceOf(rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, weft.MaxRanks-1))).Draw(t, name)
			in := map[int]bool{}
			for _, r := range ranks {
				in[r] = true
			}
			return weft.RankSetOf(ranks...), in
		}
		a, inA := draw("a")
		b, inB := draw("b")
		check := func(what string, got weft.RankSet, want func(r int) bool) {
			var members []int
			for r := range weft.MaxRanks {
				if got.Has(r) != want(r) {
					t.Fatalf("%s: has %d: %v", what, r, got.Has(r))
				}
				if want(r) {
					members = append(members, r)
				}
			}
			if all := slices.Collect(got.All()); !slices.Equal(all, members) || got.Len() != len(members) ||
				got.Empty() != (len(members) == 0) {
				t.Fatalf("%s: %v of %d, want %v", what, all, got.Len(), members)
			}
			if lowest := got.Lowest(); len(members) == 0 && lowest != -1 || len(members) > 0 && lowest != members[0] {
				t.Fatalf("%s: lowest %d of %v", what, lowest, members)
			}
			words := got.Words()
			if again, err := weft.RankSetFromWords(words[:]); err != nil || again != got {
				t.Fatalf("%s: by its words %v, %v", what, again, err)
			}
		}
		check("a", a, func(r int) bool { return inA[r] })
		check("union", a.Union(b), func(r int) bool { return inA[r] || inB[r] })
		check("minus", a.Minus(b), func(r int) bool { return inA[r] && !inB[r] })
		check("without", a.Without(slices.Collect(b.All())...), func(r int) bool { return inA[r] && !inB[r] })
		if a.Contains(b) != (a.Union(b) == a) {
			t.Fatalf("%v contains %v: %v", a, b, a.Contains(b))
		}
	})
	if a := weft.RankSetOf(3); a.Has(-1) || a.Has(weft.MaxRanks) || a.Without(-1, weft.MaxRanks) != a {
		t.Error("ranks that no communicator has")
	}
	words := make([]uint64, weft.RankSetWords+2)
	words[0] = 1 << 5
	if s, err := weft.RankSetFromWords(words); err != nil || s != weft.RankSetOf(5) {
		t.Errorf("words beyond the last rank: %v, %v", s, err)
	}
	words[weft.RankSetWords+1] = 2
	if _, err := weft.RankSetFromWords(words); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("a rank too many: %v", err)
	}
}

func TestRankSetAllocates(t *testing.T) {
	a, b, n := weft.RankSetOf(1, 63), weft.RankSetOf(2, 64, weft.MaxRanks-1), 0
	allocs := testing.AllocsPerRun(100, func() {
		s := a.Union(b).Minus(a).With(7).Without(8)
		for r := range s.All() {
			n += r
		}
		n += s.Len() + s.Lowest()
	})
	if allocs != 0 || n == 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func ExampleRankSet() {
	lost := weft.RankSetOf(3, 70)
	fmt.Println(lost, lost.Has(3), lost.Len())
	fmt.Println(lost.With(0, 4, 5), lost.Minus(weft.RankSetOf(3)))
	// Output:
	// [3 70] true 2
	// [0 3-5 70] [70]
}

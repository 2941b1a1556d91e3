package rankset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/internal/rankset"
)

// TestCamps: the ranks that differ from most are named first, and none where most do not agree.
func TestCamps(t *testing.T) {
	for _, c := range []struct {
		given   string // by rank
		says    string
		culprit int
	}{
		{"a", "rank 0 calls a", -1},
		{"aaa", "ranks 0-2 call a", -1},
		{"ab", "rank 0 calls a, rank 1 b", -1},
		{"baaa", "rank 0 calls b, ranks 1-3 a", 0},
		{"aaab", "rank 3 calls b, ranks 0-2 a", 3},
		{"aab", "rank 2 calls b, ranks 0-1 a", 2},
		{"abab", "ranks 0, 2 call a, ranks 1, 3 b", -1},
		{"abc", "rank 0 calls a, rank 1 b, rank 2 c", -1},
		{"abca", "ranks 0, 3 call a, rank 1 b, rank 2 c", -1},
		{"cabaa", "rank 0 calls c, rank 2 b, ranks 1, 3-4 a", 0},
		{"abcdefgg", "rank 0 calls a, rank 1 b, rank 2 c, 3 more ranks otherwise, ranks 6-7 g", -1},
	} {
		camps := rankset.CampsOf(slices.All(strings.Split(c.given, "")))
		same := func(v string) string { return v }
		if got := camps.Calling("calls", same); got != c.says {
			t.Errorf("%s: %q, want %q", c.given, got, c.says)
		}
		if got := camps.Culprit(); got != c.culprit {
			t.Errorf("%s: rank %d is to blame, want %d", c.given, got, c.culprit)
		}
		if got, want := camps.Differ(), strings.Trim(c.given, "a") != ""; got != want {
			t.Errorf("%s: they differ: %t", c.given, got)
		}
	}
	upper := rankset.Regroup(rankset.CampsOf(slices.All([]string{"a", "b", "A", "B", "b"})), strings.ToUpper)
	if got, want := upper.Calling("says", strings.ToLower), "ranks 0, 2 say a, ranks 1, 3-4 b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	on := rankset.CampsOf(slices.All([]string{"8", "8", "16"})).On(func(v string) string { return v })
	if want := "16 on rank 2, 8 on ranks 0-1"; on != want {
		t.Errorf("%q, want %q", on, want)
	}
}

package routing

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestRoutesAreDistinctAndDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Kind:  rapid.SampledFrom(Kinds()).Draw(t, "kind"),
			Seed:  rapid.Uint64().Draw(t, "seed"),
			Ranks: rapid.IntRange(1, 8).Draw(t, "ranks"),
		}
		cfg.Experts = cfg.Ranks * rapid.IntRange(1, 16).Draw(t, "local experts")
		cfg.TopK = rapid.IntRange(1, min(32, cfg.Experts)).Draw(t, "top-k")
		tokens := rapid.IntRange(0, 20).Draw(t, "tokens")
		rank := rapid.IntRange(0, cfg.Ranks-1).Draw(t, "rank")
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ids, weights := g.Route(rank, tokens)
		for tok := range tokens {
			row := slices.Sorted(slices.Values(ids[tok*cfg.TopK : (tok+1)*cfg.TopK]))
			if row[0] < 0 || int(row[len(row)-1]) >= cfg.Experts || len(slices.Compact(slices.Clone(row))) != len(row) {
				t.Fatalf("token %d: experts %v", tok, row)
			}
			sum := 0.0
			for _, w := range weights[tok*cfg.TopK : (tok+1)*cfg.TopK] {
				if w <= 0 {
					t.Fatalf("weight %v", w)
				}
				sum += float64(w)
			}
			if math.Abs(sum-1) > 1e-5 {
				t.Fatalf("weights sum to %v", sum)
			}
		}
		again, _ := New(cfg)
		more, _ := again.Route(rank, tokens+3)
		if !slices.Equal(more[:len(ids)], ids) {
			t.Fatal("more tokens changed the first ones")
		}
	})
}

func TestSkews(t *testing.T) {
	load := func(kind Kind) []int {
		g, err := New(Config{Kind: kind, Seed: 1, Ranks: 8, Experts: 64, TopK: 4})
		if err != nil {
			t.Fatal(err)
		}
		n := make([]int, 8)
		for rank := range 8 {
			ids, _ := g.Route(rank, 500)
			for _, e := range ids {
				n[e/8]++
			}
		}
		slices.Sort(n)
		return n // 16000 in all
	}
	if n := load(Uniform); n[7] > 2300 || n[0] < 1700 {
		t.Errorf("uniform: %v", n)
	}
	if n := load(Zipf); n[7] < 2600 {
		t.Errorf("zipf: %v", n)
	}
	if n := load(Hot); n[7] != 16000 {
		t.Errorf("hot: %v", n)
	}
}

func TestRefusals(t *testing.T) {
	for name, cfg := range map[string]Config{
		"uneven":     {Kind: Uniform, Ranks: 3, Experts: 8, TopK: 1},
		"top-k":      {Kind: Uniform, Ranks: 2, Experts: 8, TopK: 9},
		"no experts": {Kind: Uniform, Ranks: 2, TopK: 1},
		"kind":       {Kind: "cold", Ranks: 2, Experts: 8, TopK: 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCount(t *testing.T) {
	// Two experts a rank, counted on rank 0: {0,1} stays, {2,3} is one remote row for
	// two selections, {0,6} splits, {-1,-1} goes nowhere.
	got := Count([]int32{0, 1, 2, 3, 0, 6, -1, -1}, 2, 0, 2)
	want := Traffic{Tokens: 3, Selections: 6, RemoteSelections: 3, RankRows: 4, RemoteRankRows: 2}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(Traffic{6, 12, 6, 8, 4}, got.Add(want)); d != "" {
		t.Error(d)
	}
}

// FuzzParseKind takes the names of kinds, and nothing else.
func FuzzParseKind(f *testing.F) {
	for _, k := range Kinds() {
		f.Add(string(k))
	}
	f.Add("")
	f.Add("Uniform")
	f.Fuzz(func(t *testing.T, name string) {
		if k, err := ParseKind(name); (err == nil) != slices.Contains(Kinds(), Kind(name)) || err == nil &&
			string(k) != name {
			t.Errorf("%q is %q, %v", name, k, err)
		}
	})
}

package spec_test

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// TestCountRouting counts sets by hand.
func TestCountRouting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perNode := rapid.IntRange(1, 4).Draw(t, "ranks per node")
		ranks := perNode * rapid.IntRange(1, 5).Draw(t, "nodes")
		experts := ranks * rapid.IntRange(1, 5).Draw(t, "local experts")
		tokens, k := rapid.IntRange(0, 9).Draw(t, "tokens"), rapid.IntRange(1, 8).Draw(t, "top-k")
		topk := rapid.SliceOfN(rapid.Int64Range(-1, int64(experts)-1), tokens*k, tokens*k).Draw(t, "routing")
		want := &spec.TokenCounts{
			RankTokens: make([]int32, ranks), NodeTokens: make([]int32, ranks/perNode),
			ExpertSelections: make([]int32, experts), TokenInRank: make([]bool, tokens*ranks),
		}
		for token := range tokens {
			toRank, toNode := map[int]bool{}, map[int]bool{}
			for _, e := range topk[token*k : (token+1)*k] {
				if e >= 0 {
					want.ExpertSelections[e]++
					rank := int(e) * ranks / experts
					toRank[rank], toNode[rank/perNode] = true, true
				}
			}
			for r := range toRank {
				want.RankTokens[r]++
				want.TokenInRank[token*ranks+r] = true
			}
			for n := range toNode {
				want.NodeTokens[n]++
			}
		}
		narrow := make([]int32, len(topk))
		for i, e := range topk {
			narrow[i] = int32(e)
		}
		for _, in := range []weft.Tensor{weft.TensorOf(topk, tokens, k), weft.TensorOf(narrow, tokens, k)} {
			got, err := spec.CountRouting(in, experts, ranks, perNode)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatal(d)
			}
		}
	})
}

// TestCountRoutingRefuses gives it arguments that make no sense.
func TestCountRoutingRefuses(t *testing.T) {
	good := weft.TensorOf([]int32{0, 1}, 1, 2)
	for name, f := range map[string]func() (*spec.TokenCounts, error){
		"type": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.TensorOf([]float32{0}, 1, 1), 4, 2, 1)
		},
		"dimensions": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.TensorOf([]int32{0}), 4, 2, 1)
		},
		"experts": func() (*spec.TokenCounts, error) { return spec.CountRouting(good, 5, 2, 1) },
		"ranks":   func() (*spec.TokenCounts, error) { return spec.CountRouting(good, 4, 0, 1) },
		"negative": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.Tensor{DType: weft.Int32, Shape: []int{-1, 2}}, 4, 2, 1)
		},
		"width": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.Tensor{DType: weft.Int32, Shape: []int{1, -2}}, 4, 2, 1)
		},
		// Products that are 0 in 64 bits, and more than any memory.
		"many of many": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.Tensor{DType: weft.Int32, Shape: []int{math.MaxInt/2 + 1, math.MaxInt/2 + 1}}, 4, 2, 1)
		},
		"many of four": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.Tensor{DType: weft.Int32, Shape: []int{math.MaxInt/2 + 1, 4}}, 4, 2, 1)
		},
		"many": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.TensorOf(make([]int32, 1<<24+1), 1<<24+1, 1), 4, 2, 1)
		},
		"many of none": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(reshaped(good, 1<<24, 0), 4, 2, 1)
		},
		"top-k": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(reshaped(good, 1, spec.MaxTopK+1), 4, 2, 1)
		},
		"many experts": func() (*spec.TokenCounts, error) { return spec.CountRouting(good, math.MaxInt, 1, 1) },
		"many ranks": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(good, 2*weft.MaxRanks, 2*weft.MaxRanks, 1)
		},
		"nodes": func() (*spec.TokenCounts, error) { return spec.CountRouting(good, 4, 2, 3) },
		"too large": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.TensorOf([]int32{4}, 1, 1), 4, 2, 1)
		},
		"too small": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.TensorOf([]int32{-2}, 1, 1), 4, 2, 1)
		},
		"in unequal shares": func() (*spec.TokenCounts, error) {
			return spec.CountRouting(weft.Tensor{DType: weft.Int32, Shape: []int{1, 2}}, 4, 2, 1)
		},
	} {
		if _, err := f(); !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// reshaped claims that a tensor has another shape than its memory.
func reshaped(t weft.Tensor, shape ...int) weft.Tensor {
	t.Shape = shape
	return t
}

package ep_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestRanksAheadOnGPUs prepares in direct mode, again and again, on ranks that begin at unlike times: a rank is an
// operation ahead of one, and behind another. What comes before is of another size, and so is what comes next: batches
// with many tokens and with none, with all tokens for one expert and with none for any, and with more rows than there
// is room for. A dispatch between two prepares makes them use the same buffer, and without one they use both in turn.
func TestRanksAheadOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		ranks := m.times(3, 4)
		if !m.holds(ranks) {
			ranks = 2
		}
		for _, way := range []way{{"packed", packedRows}, {"token", tokenRows}} {
			for _, shape := range []struct{ topk, blocks int }{{4, 3}, {3, 2}, {5, 1}} {
				t.Run(fmt.Sprintf("%s/top-%d, %d blocks", way.name, shape.topk, shape.blocks), func(t *testing.T) {
					s := sized(way.spec, ranks)
					s.TopK, s.Experts, s.MaxTokens, s.Capacity = shape.topk, 4*ranks, 100, 0
					s.Hidden, s.Tuning.Dispatch.Blocks = 8, shape.blocks
					if way.name == "packed" || shape.topk == 3 {
						s.Capacity, s.Overflow = 150, ep.OverflowDrop // of 300 rows and more
					}
					rng := rand.New(rand.NewPCG(uint64(shape.topk), 5))
					var batches []*eptest.Batch
					for i := range 6 {
						tokens := make([]int, ranks)
						for r := range tokens {
							tokens[r] = drawn(rng, 0, 1, 33, 99, s.MaxTokens)
						}
						pick := spread(s, rng.Uint64())
						switch i {
						case 2:
							tokens = slices.Repeat([]int{s.MaxTokens}, ranks)
							pick = func(_, _, k int) int32 { return -int32(min(k, 1)) } // expert 0 alone
						case 4:
							pick = func(_, _, _ int) int32 { return -1 }
						}
						batches = append(batches, routed(s, uint64(i), tokens, pick).Batch())
					}
					steps := drawPrepares(rng, len(batches), m.times(16, 200))
					members(t, m, ranks, s, gpuDeadline/6, func(ctx context.Context, r *member) error {
						late := rand.New(rand.NewPCG(uint64(r.Rank()), 6))
						most := m.times(4000, 60) // microseconds
						return r.performAfter(ctx, batches, steps, func() {
							if late.IntN(2) == 0 {
								time.Sleep(time.Duration(late.IntN(most)) * time.Microsecond)
							}
						})
					})
				})
			}
		}
	})
}

// drawPrepares draws n steps that prepare, and some that dispatch and combine as well.
func drawPrepares(rng *rand.Rand, batches, n int) (steps []step) {
	for range n {
		s := step{batch: rng.IntN(batches), beginning: drawn(rng, beginnings[:3]...)}
		s.combine = !s.bare && rng.IntN(2) == 0
		steps = append(steps, s)
	}
	return steps
}

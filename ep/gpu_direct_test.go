//go:build linux

package ep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestRowMapOnGPUs has batches that a prepare counts in one piece, in several pieces of a
// block's tokens, and in several pieces of the experts, with as many tokens on every rank and with
// very different ones.
func TestRowMapOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		for _, shape := range []struct{ ranks, experts, topk, tokens, blocks int }{
			{2, 64, 8, 200, 3},
			{2, 6, 3, 1200, 1},
			{2, 2200, 5, 90, 2},
			{2, 2200, 3, 400, 1},
			{3, 2400, 32, 40, 40},
			{4, 256, 8, 70, 40},
			{3, 48, 12, 91, 2},
			{2, 16, 1, 6200, 97}, // token-major all of them have a share, if there are as many SMs
		} {
			packed := sized(exactRows, shape.ranks)
			packed.Layout = ep.ExpertPacked
			for name, s := range map[string]ep.Spec{
				"token-major":   pulled(sized(exactRows, shape.ranks)),
				"expert-packed": packed,
			} {
				t.Run(fmt.Sprintf("%d tokens, top-%d of %d, %d blocks/%s", shape.tokens, shape.topk,
					shape.experts, shape.blocks, name), func(t *testing.T) {
					s.Experts, s.TopK, s.MaxTokens = shape.experts, shape.topk, shape.tokens
					s.Hidden, s.Tuning.Dispatch.Blocks = 8, shape.blocks
					s.SMs = 0
					batches := []*eptest.Batch{eptest.Full(s, shape.ranks, 1).Batch()}
					for seed := uint64(2); seed < 4; seed++ {
						batches = append(batches, eptest.Fixed(s, shape.ranks, seed).Batch())
					}
					members(t, m, shape.ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						for i, b := range batches {
							if err := r.batch(ctx, b); err != nil {
								return fmt.Errorf("batch %d: %w", i, err)
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// TestTokenMapOnEmulatedGPUs prepares token-major rows with nearly as many experts as each GPU's shared memory has room
// for, with more than that, and with more than this GPU's has.
func TestTokenMapOnEmulatedGPUs(t *testing.T) {
	if !emulate.Everything() || testing.Short() {
		t.Skip("run by make test-all: WEFT_TEST_ALL=1")
	}
	const ranks = 2
	m := emulatedAs(t, cudatest.Config{
		Devices: ranks, Attributes: map[cuda.Attribute]int{cuda.SharedMemoryPerBlockOptIn: 64 << 10},
	}, emulate.Options{Limit: 2 * time.Minute, Seed: 1, Tear: true})
	for _, shape := range []struct{ experts, topk, tokens, blocks int }{
		{11800, 4, 37, 2}, {12200, 4, 37, 2}, {16600, 4, 37, 2}, {16600, 3, 9, 3},
	} {
		t.Run(fmt.Sprintf("top-%d of %d", shape.topk, shape.experts), func(t *testing.T) {
			s := sized(tokenRows, ranks)
			s.Experts, s.TopK, s.MaxTokens, s.Hidden = shape.experts, shape.topk, shape.tokens, 8
			s.Tuning.Dispatch.Blocks, s.SMs = shape.blocks, 0
			pick := func(rank, token, k int) int32 { return int32((token*7919 + k*(s.Experts/s.TopK) + rank) % s.Experts) }
			batches := []*eptest.Batch{
				routed(s, 1, []int{s.MaxTokens, s.MaxTokens}, pick).Batch(),
				routed(s, 2, []int{0, s.MaxTokens - 3}, pick).Batch(),
			}
			members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
				for i, b := range batches {
					if err := r.batch(ctx, b); err != nil {
						return fmt.Errorf("batch %d: %w", i, err)
					}
				}
				return nil
			})
		})
	}
}

// TestTooManyToNumberOnEmulatedGPUs: a selection's number among those of a block has to fit a word. What has no room
// is refused on every rank, before there is memory for it, with a way out.
func TestTooManyToNumberOnEmulatedGPUs(t *testing.T) {
	const ranks = 2
	m := emulatedMachine(t, ranks, emulate.Options{Limit: 2 * time.Minute, Seed: 1})
	s := sized(tokenRows, ranks)
	s.Experts, s.TopK, s.MaxTokens, s.Hidden, s.Tuning.Dispatch.Blocks = 4096*ranks, 32, 1<<15, 8, 1
	err := m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
		_, err := ep.NewHandle(testContext(t), c, s)
		if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "or its dispatches more blocks") {
			return fmt.Errorf("%d tokens of one block: %w", s.MaxTokens, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestManyBlocksOnEmulatedGPUs prepares token-major rows of which more blocks have a share than a warp has lanes, on
// more ranks than a warp reads at once, with as many tokens on every rank and with very different ones.
func TestManyBlocksOnEmulatedGPUs(t *testing.T) {
	if !emulate.Everything() || testing.Short() {
		t.Skip("run by make test-all: WEFT_TEST_ALL=1")
	}
	for _, shape := range []struct{ ranks, experts, topk, tokens, blocks int }{
		{2, 16, 1, 6200, 96}, {5, 10, 3, 2500, 40}, {6, 48, 4, 2240, 35},
	} {
		t.Run(fmt.Sprintf("%d ranks, %d blocks", shape.ranks, shape.blocks), func(t *testing.T) {
			m := emulatedAs(t, cudatest.Config{
				Devices: shape.ranks, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 132},
			}, emulate.Options{Limit: 2 * time.Minute, Seed: 1, Tear: true})
			s := sized(tokenRows, shape.ranks)
			s.Experts, s.TopK, s.MaxTokens, s.Hidden = shape.experts, shape.topk, shape.tokens, 8
			s.Tuning.Dispatch.Blocks, s.SMs = shape.blocks, 0
			batches := []*eptest.Batch{eptest.Full(s, shape.ranks, 1).Batch(), eptest.Fixed(s, shape.ranks, 2).Batch()}
			members(t, m, shape.ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
				if blocks := ep.ToldBy(r.handle, 0, 0, 1).Blocks; blocks != shape.blocks {
					return fmt.Errorf("%d blocks have a share, want %d", blocks, shape.blocks)
				}
				for i, b := range batches {
					if err := r.batch(ctx, b); err != nil {
						return fmt.Errorf("batch %d: %w", i, err)
					}
				}
				return nil
			})
		})
	}
}

// TestStageOrSlotsOnGPUs combines rows by expert whose homes read them where they are, and such
// whose copy would be far larger than what is received, which go through slots.
func TestStageOrSlotsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 3
		if !m.holds(ranks) {
			t.Skip("ranks would share a GPU")
		}
		for _, way := range []struct {
			name         string
			hidden, topk int
			capacity     int
			pulls        bool
		}{
			{"as large as what is received", 16, 3, 0, true},
			{"far larger", 1024, 3, 0, false},
			{"no larger than slots", 1024, 3, 36, true},
			{"many rows of a token", 1024, 32, 380, true},
		} {
			t.Run(way.name, func(t *testing.T) {
				s := sized(exactRows, ranks)
				s.Layout, s.Payload, s.RowBytes, s.ScaleBytes, s.Output = ep.ExpertPacked, ep.Opaque, 32, 0, weft.BFloat16
				s.Hidden, s.TopK, s.Experts, s.Capacity, s.Overflow = way.hidden, way.topk, 12*ranks, way.capacity, ep.OverflowDrop
				c := evenly(s, ranks, 1, s.MaxTokens)
				c.Operand = eptest.PlainOperand
				b := c.Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					if buffer := r.handle.CombineBuffer(); buffer.IsZero() == way.pulls {
						return fmt.Errorf("a buffer of %v", buffer)
					}
					return r.batch(ctx, b)
				})
			})
		}
	})
}

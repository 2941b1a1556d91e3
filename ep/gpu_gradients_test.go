package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// TestGradientsOnGPUs moves gradients of rows that a warp has to take in a little more than one
// chunk, and in several, with products in the order that the host has.
func TestGradientsOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 3
		many := packedRows // rows of a token at a rank
		many.Capacity = 0
		for _, way := range append(slices.Clone(ways), way{"many", many}) {
			for _, hidden := range []int{1032, 2440} {
				t.Run(fmt.Sprintf("%s/%d", way.name, hidden), func(t *testing.T) {
					if !m.holds(ranks) {
						t.Skip("ranks would share a GPU")
					}
					s := sized(way.spec, ranks)
					s.Hidden = hidden
					if way.name == "many" {
						s.Experts, s.TopK, s.Payload, s.Output = 8*ranks, 19, ep.FP32, weft.Float32
					}
					b := routed(s, uint64(hidden), []int{5, 0, 6}, spread(s, 1)).Batch()
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						round, err := b.Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						if err := r.exchange(ctx, round); err != nil {
							return err
						}
						back := func() error {
							return errors.Join(round.Backward(ctx, r.stream), r.Wait(ctx, r.stream), round.CheckGradients())
						}
						if err := back(); err != nil {
							return err
						}
						buffer := r.handle.GradientBuffer()
						if buffer.DType != r.handle.Spec().Output || buffer.Shape[0] != s.MaxTokens ||
							buffer.Shape[1] != s.Hidden || !ep.Readable(r.handle, buffer) {
							return fmt.Errorf("a buffer of %v", buffer)
						}
						if err := round.GradientsAt(buffer); err != nil {
							return err
						}
						if err := back(); err != nil {
							return fmt.Errorf("from the buffer: %w", err)
						}
						return round.Free()
					})
				})
			}
		}
	})
}

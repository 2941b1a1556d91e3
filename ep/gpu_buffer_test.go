package ep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestCombineBufferOnGPUs combines rows of another type than those that were dispatched, from the buffer that others read where it is.
func TestCombineBufferOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			if m.emulated && way.name != "token" && way.name != "packed" {
				continue // each needs kernels of its own, which take long to compile
			}
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				s.Hidden, s.Payload, s.Quantize, s.Output = 128, ep.FP8, weft.BFloat16, weft.BFloat16
				c := evenly(s, ranks, 1, min(s.MaxTokens, 9))
				c.Operand = eptest.PlainOperand
				batches := []*eptest.Batch{c.Batch(), evenly(s, ranks, 2, 3).Batch()}
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					buffer := r.handle.CombineBuffer()
					if s.Layout != ep.TokenMajor && (s.Layout != ep.ExpertPacked || s.Reduction != ep.Exact) {
						if !buffer.IsZero() {
							return fmt.Errorf("a buffer of %v, for rows that need none", buffer)
						}
						return nil
					}
					if buffer.DType != s.Output || buffer.Shape[0] != r.handle.Capacity() || buffer.Shape[1] != s.Hidden {
						return fmt.Errorf("a buffer of %v", buffer)
					}
					round, err := batches[0].Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					for i := range 3 {
						if err := round.Place(buffer); err != nil {
							return err
						}
						if err := r.exchange(ctx, round); err != nil {
							return fmt.Errorf("from the buffer, %d: %w", i, err)
						}
						if !ep.Readable(r.handle, buffer) {
							return errors.New("the buffer is copied")
						}
						if err := r.batch(ctx, batches[1]); err != nil { // whose rows are copied there
							return fmt.Errorf("after it, %d: %w", i, err)
						}
					}
					return round.Free()
				})
			})
		}
	})
}

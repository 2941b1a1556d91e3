package ep_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestCombineBufferOnGPUs combines rows of another type than those that were dispatched, from the
// buffer that others read where it is.
func TestCombineBufferOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		capped := exactRows
		capped.Capacity, capped.Overflow = 11, ep.OverflowDrop // of 12 that may come
		for _, way := range append(ways[:len(ways):len(ways)], way{"capped", capped}) {
			if m.emulated && way.name != "capped" && way.name != "token" && way.name != "packed" {
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
					if s.Layout != ep.TokenMajor && (s.Layout != ep.ExpertPacked || s.Reduction != ep.Exact) && s.Capacity == 0 {
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
						if err := round.RowsAt(buffer); err != nil {
							return err
						}
						if err := r.exchange(ctx, round); err != nil {
							return fmt.Errorf("from the buffer, %d: %w", i, err)
						}
						if !ep.Readable(r.handle, buffer) {
							return errors.New("the buffer is copied")
						}
						if err := r.staged(ctx, batches[1], buffer); err != nil {
							return fmt.Errorf("after it, %d: %w", i, err)
						}
					}
					return round.Free()
				})
			})
		}
	})
}

// staged is batch of rows that lie elsewhere than in the buffer that others read: of it no more
// changes than there are rows.
func (r *member) staged(ctx context.Context, b *eptest.Batch, buffer weft.Tensor) error {
	round, err := b.Round(r.e, r.Comm, r.handle)
	if err != nil {
		return err
	}
	left := bytes.Repeat([]byte{0x5A}, buffer.Bytes())
	if err := errors.Join(r.e.Upload(r.Comm, buffer.Data, left), r.exchange(ctx, round)); err != nil {
		return err
	}
	now := make([]byte, len(left))
	if err := r.e.Download(r.Comm, now, buffer.Data); err != nil {
		return err
	}
	rows, bytesOfRow := round.Received().Received(), buffer.Bytes()/buffer.Shape[0]
	if rows == 0 || rows == buffer.Shape[0] {
		return fmt.Errorf("%d rows of %d: the test wants a part of them", rows, buffer.Shape[0])
	}
	same := 0
	for row := range slices.Chunk(now, bytesOfRow) {
		if bytes.Equal(row, left[:bytesOfRow]) {
			same++
		}
	}
	if copied := buffer.Shape[0] - same; copied != rows {
		return fmt.Errorf("%d rows were copied, and %d are there", copied, rows)
	}
	return round.Free()
}

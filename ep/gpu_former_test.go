package ep_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/eptest"
)

// TestFormerMemoryOnGPUs leaves out a rank again and again, which has the others take other memory
// each time: what was used before is freed, but not what somebody holds rows in, nor what a graph
// knows, which finds itself stopped.
func TestFormerMemoryOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, late = 3, 1
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				s.Live = 4
				inWindow := way.name == "direct" || way.name == "packed" || way.name == "token"
				b := evenly(s, ranks, 1, 9%s.MaxTokens).Batch(late)
				rested, launched, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
				members(t, m, ranks, s, 2*time.Second, func(ctx context.Context, r *member) error {
					err := eptest.Meet(r.Comm) // all have their handles
					if r.Rank() == late {
						return await(ctx, over) // it may have been left out before it had met everyone
					}
					if err != nil {
						return err
					}
					if r.Rank() == 0 {
						defer close(over)
					}
					leaveOut := func() error {
						if err := r.SetMask(ctx, late); err != nil {
							return err
						}
						return r.batch(ctx, b)
					}
					once := r.handle.MemoryBytes()
					for i := range 3 {
						if err := leaveOut(); err != nil {
							return err
						}
						if n := r.handle.MemoryBytes(); n != once {
							return fmt.Errorf("%d bytes after it was left out %d times, %d before", n, i+1, once)
						}
					}

					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(round.PrepareDispatch(ctx, r.stream), r.rest(ctx)); err != nil {
						return err
					}
					data := round.Received().Data
					before, after := make([]byte, data.Bytes()), make([]byte, data.Bytes())
					if err := errors.Join(r.e.Download(r.Comm, before, data.Data), leaveOut(),
						r.e.Download(r.Comm, after, data.Data)); err != nil {
						return fmt.Errorf("with rows that are held: %w", err)
					}
					if !bytes.Equal(before, after) {
						return errors.New("rows that are held have changed")
					}
					if n := r.handle.MemoryBytes(); (n > once) != inWindow {
						return fmt.Errorf("%d bytes with rows that are held, %d before", n, once)
					}
					round.Release()
					if err := leaveOut(); err != nil {
						return err
					}
					if n := r.handle.MemoryBytes(); n != once {
						return fmt.Errorf("%d bytes after the rows were released, %d before", n, once)
					}

					if err := errors.Join(round.PrepareDispatch(ctx, r.stream), r.rest(ctx)); err != nil {
						return err
					}
					g, err := r.capture(func() error { return round.Combine(ctx, r.stream) })
					if err != nil {
						return err
					}
					round.Release()
					for range 2 {
						if err := leaveOut(); err != nil {
							return fmt.Errorf("beside a graph: %w", err)
						}
						if n := r.handle.MemoryBytes(); n <= once || n > 2*once {
							return fmt.Errorf("%d bytes beside a graph, %d before", n, once)
						}
					}
					if err := r.rest(ctx); err != nil {
						return err
					}
					if r.Rank() == 0 {
						err = errors.Join(await(ctx, rested), g.Launch(r.stream.CUDA()))
						if err == nil {
							err = r.Wait(ctx, r.stream)
						}
						close(launched)
						if err == nil || errors.Is(err, cuda.ErrIllegalAddress) {
							return fmt.Errorf("a graph that knows memory of before: %w", err)
						}
					} else {
						close(rested)
						if err := await(ctx, launched); err != nil {
							return err
						}
					}
					return errors.Join(r.usable(), leaveOut(), g.Close(), round.Free())
				})
			})
		}
	})
}

package ep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/matmul"
)

// TestBesideProductOnGPUs has dispatches and combines under way while the GPUs multiply matrices in
// another stream, with more blocks than multiprocessors: each makes room for the other, and both
// come out right. What it costs is weft bench overlap's to say.
func TestBesideProductOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		shape := matmul.Shape{Rows: 128, Columns: 128, Inner: 64}
		if !m.emulated {
			shape = matmul.Shape{Rows: 2048, Columns: 4096, Inner: 4096}
		}
		for _, sms := range []int{8, 24}[m.times(1, 0):] {
			t.Run(fmt.Sprintf("%d SMs", sms), func(t *testing.T) {
				s := sized(tokenRows, ranks)
				if !m.emulated {
					s.SMs, s.MaxTokens, s.Hidden, s.TopK, s.Experts = sms, 4096, 1024, 2, 8*ranks
				}
				batch := evenly(s, ranks, uint64(sms), m.times(9, 4096)).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) (err error) {
					b, err := newMultiplier(ctx, r, shape)
					if err != nil {
						return err
					}
					defer func() { err = errors.Join(err, b.close(ctx)) }()
					round, err := batch.Round(r.e, r.Comm, r.handle) // where all meet: nothing runs before all have what they need
					if err != nil {
						return err
					}
					for i := range m.times(2, 5) {
						if err := b.beside(ctx, round, m.times(2, 20)); err != nil {
							return fmt.Errorf("time %d: %w", i, err)
						}
					}
					return round.Free()
				})
			})
		}
	})
}

// multiplier is a rank whose GPU multiplies beside what it exchanges.
type multiplier struct {
	*member
	own     *weft.Stream // of the exchanges
	compute *cuda.Stream
	product *matmul.Product
}

func newMultiplier(ctx context.Context, r *member, shape matmul.Shape) (*multiplier, error) {
	b := &multiplier{member: r, own: weft.StreamOf(r.Device().Stream())}
	c := r.Device().Context()
	var err error
	if b.compute, err = c.NewStream(cuda.StreamOptions{}); err != nil {
		return nil, err
	}
	if b.product, err = matmul.New(ctx, c, r.Device().Kernels(), shape, uint64(r.Rank())); err != nil {
		return nil, errors.Join(err, b.compute.Close())
	}
	return b, nil
}

// close gives the memory back when no rank has work that waits for another's.
func (b *multiplier) close(ctx context.Context) error {
	err := errors.Join(b.Wait(ctx, b.own), b.compute.Wait(ctx))
	if err == nil {
		err = eptest.Meet(b.Comm)
	}
	return errors.Join(err, b.product.Close(), b.compute.Close())
}

// beside enqueues so many products, and as many exchanges, and looks at what each left. Products
// are enqueued by a goroutine of their own: an emulated GPU runs what it is given before the call
// returns.
func (b *multiplier) beside(ctx context.Context, round *eptest.Round, n int) error {
	if err := errors.Join(b.product.Spoil(b.compute), eptest.Meet(b.Comm)); err != nil {
		return err
	}
	multiplied := make(chan error, 1)
	go func() {
		var err error
		for range n {
			err = errors.Join(err, b.product.Start(b.compute))
		}
		multiplied <- err
	}()
	var err error
	for range n {
		if err = errors.Join(round.PrepareDispatch(ctx, b.own), round.Combine(ctx, b.own)); err != nil {
			break
		}
	}
	if err := errors.Join(err, <-multiplied); err != nil {
		return err
	}
	if err := errors.Join(b.Wait(ctx, b.own), b.compute.Wait(ctx)); err != nil {
		return err
	}
	return errors.Join(round.Check(), b.product.Check())
}

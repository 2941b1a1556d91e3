package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// aside dispatches rows in the communicator's own stream, from when the stream that computes has
// made them, while that stream goes on. What it is given after it was told to wait for arrived sees
// what has come. Until then x, topk and weights are borrowed.
func aside(ctx context.Context, h *ep.Handle, compute *cuda.Stream, made, arrived *cuda.Event, topk,
	weights weft.Tensor, x ep.Rows,
) (*ep.Received, error) {
	own := h.Comm().Device().Stream()
	if err := errors.Join(made.Record(compute), own.WaitEvent(made)); err != nil {
		return nil, err
	}
	received, err := h.Dispatch(ctx, weft.StreamOf(own), ep.DispatchArgs{TopK: topk, Weights: weights, Rows: x})
	if err != nil {
		return nil, err
	}
	return received, arrived.Record(own)
}

// An exchange beside the stream that computes, ordered by events: it begins after what has been
// enqueued there by now, and what is enqueued there from WaitEvent on begins after it. In between
// the two streams are at work at once. The same calls can be captured, in a graph that begins in
// the stream that computes.
func Example_besideCompute() {
	var (
		ctx           context.Context
		handle        *ep.Handle
		compute       *cuda.Stream // the caller's
		made, arrived *cuda.Event  // the caller's, which can be used again and again
		topk, weights weft.Tensor
		x             ep.Rows
		attention     func(s *cuda.Stream) error // makes x, among others
		shared        func(s *cuda.Stream) error // needs no exchange
		experts       func(s *cuda.Stream, received *ep.Received) error
	)
	layer := func() error {
		if err := attention(compute); err != nil {
			return err
		}
		received, err := aside(ctx, handle, compute, made, arrived, topk, weights, x)
		if err != nil {
			return err
		}
		return errors.Join(shared(compute), compute.WaitEvent(arrived), experts(compute, received))
	}
	_ = layer
}

// TestBesideComputeOnGPUs is the example, with two ranks whose tokens are swapped, eager and in
// graphs. The stream that computes is slow to make the rows: who did not wait would send those of
// before.
func TestBesideComputeOnGPUs(t *testing.T) {
	const ranks, tokens, hidden = 2, 3, 16
	spec := ep.Spec{
		Experts: ranks, TopK: 1, Hidden: hidden, MaxTokens: tokens, Layout: ep.RankMajor,
		Reduction: ep.Partial, Weighting: ep.Plain,
		Payload: ep.FP32, Counts: ep.DeviceCounts, SMs: 4,
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		members(t, m, ranks, spec, gpuDeadline, func(ctx context.Context, r *member) (err error) {
			b, err := newAsideRank(r, ranks, tokens, hidden, m.times(1<<10, 256<<20))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, b.rest(ctx), b.close()) }()
			for i := range m.times(3, 30) {
				if err := errors.Join(b.begin(ctx, float32(i)), b.layer(ctx), b.check(ctx, "eager")); err != nil {
					return err
				}
			}
			g, err := b.capture(func() error { return b.layer(ctx) })
			if err != nil {
				return err
			}
			for i := range m.times(3, 30) {
				if err := errors.Join(b.begin(ctx, float32(-i)), g.Launch(b.stream.CUDA()), b.check(ctx, "graph")); err != nil {
					return err
				}
			}
			return errors.Join(b.rest(ctx), g.Close())
		})
	})
}

// asideRank is a rank of that test.
type asideRank struct {
	*member
	ranks, tokens, hidden int
	value                 float32
	made, arrived         *cuda.Event
	memory                []*cuda.Memory
	slow                  *cuda.Memory // takes long to fill
	source, x, out        weft.Tensor  // the rows to send; where they are made; what has come
	topk                  weft.Tensor
}

func newAsideRank(r *member, ranks, tokens, hidden, slow int) (_ *asideRank, err error) {
	b := &asideRank{member: r, ranks: ranks, tokens: tokens, hidden: hidden}
	c := r.Device().Context()
	alloc := func(d weft.DType, shape ...int) weft.Tensor {
		t := weft.Tensor{DType: d, Shape: shape}
		m, failed := c.Alloc(t.Bytes())
		if failed != nil {
			err = errors.Join(err, failed)
			return t
		}
		b.memory = append(b.memory, m)
		return weft.DeviceTensor(m.Pointer(), d, shape...)
	}
	b.source, b.x = alloc(weft.Float32, tokens, hidden), alloc(weft.Float32, tokens, hidden)
	b.out, b.topk = alloc(weft.Float32, ranks*tokens, hidden), alloc(weft.Int32, tokens, 1)
	alloc(weft.Uint8, slow)
	if err != nil {
		return nil, err
	}
	b.slow = b.memory[len(b.memory)-1]
	for _, e := range []**cuda.Event{&b.made, &b.arrived} {
		if *e, err = c.NewEvent(cuda.EventOptions{}); err != nil {
			return nil, err
		}
	}
	other := slices.Repeat([]int32{int32(1 - r.Rank())}, tokens)
	return b, errors.Join(c.Upload(b.topk.Pointer(), weft.TensorOf(other).Raw()), eptest.Meet(r.Comm))
}

func (b *asideRank) close() error {
	err := errors.Join(b.made.Close(), b.arrived.Close())
	for _, m := range b.memory {
		err = errors.Join(err, m.Close())
	}
	return err
}

// of is a number of a row.
func (b *asideRank) of(rank, token, i int) float32 {
	return b.value + float32(1000*rank+100*token+i)
}

// begin makes other rows than before, and spoils what has come.
func (b *asideRank) begin(ctx context.Context, value float32) error {
	b.value = 10000 * value
	var rows []float32
	for t := range b.tokens {
		for i := range b.hidden {
			rows = append(rows, b.of(b.Rank(), t, i))
		}
	}
	s := b.stream.CUDA()
	return errors.Join(b.Device().Context().Upload(b.source.Pointer(), weft.TensorOf(rows).Raw()),
		s.Memset(b.out.Pointer(), 0xA5, b.out.Bytes()), b.Wait(ctx, b.stream))
}

// layer is the example's.
func (b *asideRank) layer(ctx context.Context) error {
	s := b.stream.CUDA()
	if err := errors.Join(s.Memset(b.slow.Pointer(), 1, b.slow.Size()),
		s.Copy(b.x.Pointer(), b.source.Pointer(), b.x.Bytes())); err != nil {
		return err
	}
	received, err := aside(ctx, b.handle, s, b.made, b.arrived, b.topk, weft.Tensor{}, ep.Rows{Data: b.x})
	if err != nil {
		return err
	}
	err = errors.Join(s.WaitEvent(b.arrived), s.Copy(b.out.Pointer(), received.Data.Pointer(), b.out.Bytes()))
	received.Release()
	received.Routing.Release()
	return err
}

// check compares what has come from the other rank.
func (b *asideRank) check(ctx context.Context, what string) error {
	got := make([]float32, b.out.Elems())
	if err := errors.Join(b.Wait(ctx, b.stream),
		b.Device().Context().Download(weft.TensorOf(got).Raw(), b.out.Pointer())); err != nil {
		return err
	}
	other := 1 - b.Rank()
	for t := range b.tokens {
		for i := range b.hidden {
			if got, want := got[(other*b.tokens+t)*b.hidden+i], b.of(other, t, i); got != want {
				return fmt.Errorf("%s, values from %v on: token %d of rank %d begins with %v, want %v", what,
					b.value, t, other, got, want)
			}
		}
	}
	return nil
}

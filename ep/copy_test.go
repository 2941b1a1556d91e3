package ep_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestCopyRefusals: what cannot be copied, or not there, is refused in words, and nothing is
// written.
func TestCopyRefusals(t *testing.T) {
	ctx := testContext(t)
	group, err := ranktest.Join(1)
	if err != nil {
		t.Fatal(err)
	}
	c := group[0]
	t.Cleanup(func() { _ = c.Close() })
	const tokens, experts, hidden = 3, 4, 128
	open := func(layout ep.Layout, payload ep.Payload) (*ep.Handle, *ep.Received) {
		s := ep.Spec{
			Experts: experts, TopK: 2, Hidden: hidden, MaxTokens: tokens, Layout: layout,
			Payload: payload, Reduction: ep.Partial, Weighting: ep.Plain,
		}
		h, err := ep.NewHandle(ctx, c, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		x := ep.Rows{Data: weft.TensorOf(make([]weft.BF16, tokens*hidden), tokens, hidden)}
		if payload == ep.FP8 {
			x = ep.Rows{
				Data:   weft.TensorOf(make([]weft.E4M3, tokens*hidden), tokens, hidden),
				Scales: weft.TensorOf(make([]float32, tokens), tokens, 1),
			}
		}
		got, err := h.Dispatch(ctx, nil, ep.DispatchArgs{
			TopK: weft.TensorOf([]int32{0, 1, 1, 2, 3, 0}, tokens, 2), Rows: x,
		})
		if err != nil {
			t.Fatal(err)
		}
		return h, got
	}
	h, got := open(ep.ExpertMajor, ep.BF16)
	scaled, gotScaled := open(ep.TokenMajor, ep.FP8)
	memory := make([]uint16, 3*experts*tokens*hidden)
	bf16 := func(shape ...int) weft.Tensor {
		return weft.Tensor{Data: unsafe.Pointer(&memory[0]), DType: weft.BFloat16, Shape: shape}
	}
	ints := func(shape ...int) weft.Tensor {
		return weft.Tensor{Data: unsafe.Pointer(&memory[0]), DType: weft.Int32, Shape: shape}
	}
	floats := func(shape ...int) weft.Tensor {
		return weft.Tensor{Data: unsafe.Pointer(&memory[0]), DType: weft.Float32, Shape: shape}
	}
	released := *got
	released.Release()
	for _, test := range []struct {
		name string
		h    *ep.Handle
		from *ep.Received
		to   ep.Copies
		want string
	}{
		{"nothing", h, nil, ep.Copies{}, "not received by this handle"},
		{"another handle's", h, gotScaled, ep.Copies{}, "not received by this handle"},
		{"released", h, &released, ep.Copies{}, "released"},
		{"type", h, got, ep.Copies{Data: floats(experts, tokens, hidden)}, "rows are fp32[4 3 128], want bf16[4 3 128]"},
		{"shape", h, got, ep.Copies{Data: bf16(experts, tokens+1, hidden)}, "want bf16[4 3 128]"},
		{"dimensions", h, got, ep.Copies{Data: bf16(experts*tokens, hidden)}, "want bf16[4 3 128]"},
		{"no memory", h, got, ep.Copies{Data: weft.Tensor{
			DType: weft.BFloat16,
			Shape: []int{experts, tokens, hidden},
		}}, "no memory"},
		{"no scales", h, got, ep.Copies{Scales: floats(experts, tokens, 1)}, "leave them out"},
		{
			"too few rows", scaled, gotScaled,
			ep.Copies{SourceTokens: ints(tokens - 1)},
			"source tokens are int32[2], want int32[3]",
		},
		{"order", scaled, gotScaled, ep.Copies{Scales: floats(tokens, 1), ScaleOrder: 2}, "scale order 2"},
		{
			"shape of scales", scaled, gotScaled,
			ep.Copies{Scales: floats(tokens, 1), ScaleOrder: ep.ColumnMajorScales},
			"want fp32[1 3]",
		},
		{"experts of rows by expert", h, got, ep.Copies{RowExperts: ints(experts*tokens, 2)}, "take RowWeights"},
		{
			"type of experts", scaled, gotScaled,
			ep.Copies{RowExperts: floats(tokens, 2)},
			"row experts are fp32[3 2], want int32[3 2]",
		},
		{"weights of rows by rank", scaled, gotScaled, ep.Copies{RowWeights: floats(tokens)}, "take RowExperts"},
		{
			"overlap", h, got,
			ep.Copies{SourceTokens: ints(experts * tokens), ExpertCounts: ints(experts)},
			"the source tokens and the expert counts overlap",
		},
		{"itself", h, got, ep.Copies{Data: got.Data}, "overlap the received batch"},
	} {
		err := test.h.CopyReceived(ctx, nil, test.from, test.to)
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want one with %q", test.name, err, test.want)
		}
	}
	for i, v := range memory {
		if v != 0 {
			t.Fatalf("element %d was written", i)
		}
	}
	if err := h.CopyReceived(ctx, nil, got, ep.Copies{}); err != nil {
		t.Errorf("nothing to copy: %v", err)
	}
	got.Routing.Release()
	if err := h.CopyReceived(ctx, nil, got, ep.Copies{}); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("after its routing was released: %v", err)
	}
	if err := scaled.Close(); err != nil {
		t.Fatal(err)
	}
	if err := scaled.CopyReceived(ctx, nil, gotScaled, ep.Copies{}); !errors.Is(err, weft.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestCopiesOnGPUs copies rows of several pieces, with scales of several shares, of more experts
// than a warp looks at at once; with nothing, little and all that there is room for, and with rows
// dropped.
func TestCopiesOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks, local, tokens = 2, 70, 40
		fp8 := ep.Spec{
			Payload: ep.FP8, Quantize: weft.BFloat16, Hidden: 9 * 512, Output: weft.BFloat16,
			ScaleOrder: ep.ColumnMajorScales,
		}
		for _, way := range []struct {
			name   string
			layout ep.Layout
			spec   ep.Spec
		}{
			{"slots", ep.ExpertMajor, fp8},
			{"dropped", ep.ExpertMajor, ep.Spec{Payload: ep.BF16, Hidden: 1200, Capacity: 2, Overflow: ep.OverflowDrop}},
			{"rank", ep.RankMajor, fp8},
			{"token", ep.TokenMajor, fp8},
		} {
			t.Run(way.name, func(t *testing.T) {
				s := way.spec
				s.Experts, s.TopK, s.MaxTokens = ranks*local, 3, tokens
				s.Layout, s.SMs, s.Counts = way.layout, 2*ranks, ep.DeviceCounts
				s.Reduction, s.Weighting = ep.Partial, ep.Plain
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					for seed, sent := range [][]int{{0, 0}, {1, 0}, {tokens, 7}, {tokens, tokens}} {
						c := routed(s, uint64(5*seed), sent, spread(s, uint64(seed)))
						round, err := c.Batch().Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						err = errors.Join(round.PrepareDispatch(ctx, r.stream), round.Copy(ctx, r.stream), r.rest(ctx))
						if err == nil {
							err = round.CheckCopied()
						}
						if err = errors.Join(err, round.Free()); err != nil {
							return fmt.Errorf("tokens %v: %w", sent, err)
						}
					}
					return nil
				})
			})
		}
	})
}

// arrived is a round of a batch whose rows have come.
func (r *member) arrived(ctx context.Context, b *eptest.Batch) (*eptest.Round, error) {
	round, err := b.Round(r.e, r.Comm, r.handle)
	if err != nil {
		return nil, err
	}
	return round, errors.Join(round.PrepareDispatch(ctx, r.stream), r.rest(ctx))
}

// TestCopiesOfFewRowsOnGPUs copies to tensors with room for fewer rows than have arrived, of which the host does not
// know: the first rows come, and nothing is written behind them.
func TestCopiesOfFewRowsOnGPUs(t *testing.T) {
	const ranks, tokens = 2, 9
	of := func(t *testing.T, m *gpuMachine, layout ep.Layout) {
		s := sized(ep.Spec{MaxTokens: tokens, Layout: layout, Reduction: ep.Partial, Counts: ep.DeviceCounts}, ranks)
		if layout == ep.TokenMajor {
			s.Weighting = ep.Plain
		}
		b := evenly(s, ranks, 1, tokens).Batch()
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := r.arrived(ctx, b)
			if err != nil {
				return err
			}
			got := round.Received()
			all := got.Data.Shape[0]
			row := got.Data.Bytes() / all
			memory, err := r.e.Alloc(r.Comm, row*all+4*all, false)
			if err != nil {
				return err
			}
			sources := unsafe.Add(memory.Data, row*all)
			first := func(rows int, data, tokens unsafe.Pointer) (to ep.Copies) {
				to.Data, to.SourceTokens = got.Data, weft.Tensor{Data: tokens, DType: weft.Int32, Shape: []int{rows}}
				to.Data.Data, to.Data.Shape = data, append([]int{rows}, got.Data.Shape[1:]...)
				return to
			}
			read := func(to ep.Copies) ([]byte, error) {
				blank := bytes.Repeat([]byte{0xa5}, row*all+4*all)
				out := make([]byte, len(blank))
				err := errors.Join(r.e.Upload(r.Comm, memory.Data, blank), r.handle.CopyReceived(ctx, r.stream, got, to),
					r.rest(ctx), r.e.Download(r.Comm, out, memory.Data))
				return out, err
			}
			whole, err := read(first(all, memory.Data, sources))
			if err != nil {
				return err
			}
			for _, n := range []int{0, 1, 3} {
				out, err := read(first(n, memory.Data, sources))
				if err != nil {
					return fmt.Errorf("%d rows: %w", n, err)
				}
				want := bytes.Repeat([]byte{0xa5}, len(whole))
				copy(want, whole[:n*row])
				copy(want[row*all:], whole[row*all:][:4*n])
				if !bytes.Equal(out, want) {
					return fmt.Errorf("%d rows: what is copied, or what stands behind it, is not as it should be", n)
				}
			}
			return errors.Join(memory.Free(), round.Free())
		})
	}
	for _, layout := range []ep.Layout{ep.TokenMajor, ep.ExpertPacked} {
		t.Run(layout.String(), func(t *testing.T) {
			t.Run("within", func(t *testing.T) {
				eachMachine(t, func(t *testing.T, m *gpuMachine) { of(t, m, layout) })
			})
			t.Run("between", func(t *testing.T) {
				eachHost(t, func(t *testing.T, m *gpuMachine) { of(t, m, layout) })
			})
		})
	}
}

// TestCopyOperandsOnGPUs refuses what kernels could not store, and says so of rows that a graph
// would outlive.
func TestCopyOperandsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.Abandons = true
		const ranks, late = 2, 1
		s := sized(directRows, ranks)
		b := evenly(s, ranks, 5, 3).Batch()
		met, over := make(chan struct{}), make(chan struct{})
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := r.arrived(ctx, b)
			if err != nil {
				return err
			}
			got := round.Received()
			// Addresses that nothing is at: a call that is refused stores nothing.
			at := func(address uintptr, like weft.Tensor) weft.Tensor {
				like.Data = *(*unsafe.Pointer)(unsafe.Pointer(&address))
				return like
			}
			counts := got.ExpertCounts()
			for what, to := range map[string]ep.Copies{
				"rows":          {Data: at(8, got.Data)},
				"expert counts": {ExpertCounts: at(2, counts)},
			} {
				if err := r.handle.CopyReceived(ctx, r.stream, got, to); !errors.Is(err, weft.ErrUnsupported) ||
					!strings.Contains(err.Error(), what) {
					return fmt.Errorf("%s that begin anywhere: %w", what, err)
				}
			}
			if r.Rank() == late {
				close(met)
				return await(ctx, over)
			}
			defer close(over)
			// who still meets would be told that it is masked
			if err := errors.Join(await(ctx, met), r.SetMask(ctx, late)); err != nil {
				return err
			}
			// They are still there, and can be copied, until the handle takes other memory; and
			// then they are where they were.
			if err := errors.Join(round.Copy(ctx, r.stream), r.Wait(ctx, r.stream), round.CheckCopied()); err != nil {
				return fmt.Errorf("after a mask: %w", err)
			}
			alone, err := r.handle.Prepare(ctx, r.stream, weft.Tensor{DType: weft.Int32, Shape: []int{0, s.TopK}}, weft.Tensor{})
			if err != nil {
				return err
			}
			alone.Release()
			if err := errors.Join(round.Copy(ctx, r.stream), r.Wait(ctx, r.stream), round.CheckCopied()); err != nil {
				return fmt.Errorf("from memory of before: %w", err)
			}
			g, err := r.capture(func() error { return round.Copy(ctx, r.stream) })
			if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "outside of the capture") {
				return fmt.Errorf("into a graph: %w", err)
			}
			if g != nil {
				return g.Close()
			}
			return nil
		})
	})
}

package ep_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// weightedRound is a batch of which every selection of a rank weighs the same, so that a row's
// weight follows from its source.
type weightedRound struct {
	*eptest.Round
	r       *member
	topk    weft.Tensor
	weights weft.Tensor
	in      ep.Rows
	routing *ep.Routing
}

// setWeights makes the numbers of the operand those of the turn.
func (w *weightedRound) setWeights(turn int) error {
	var raw []byte
	for range w.weights.Elems() {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(weightOf(w.r.Rank(), turn)))
	}
	return w.r.e.Upload(w.r.Comm, w.weights.Data, raw)
}

func weightOf(rank, turn int) float32 { return float32(100*turn + rank + 1) }

func newWeightedRound(ctx context.Context, r *member, b *eptest.Batch) (*weightedRound, error) {
	round, err := b.Round(r.e, r.Comm, r.handle)
	if err != nil {
		return nil, err
	}
	w := &weightedRound{Round: round, r: r}
	w.topk, w.weights, w.in, _ = round.Operands()
	if err := w.setWeights(0); err != nil {
		return nil, err
	}
	if w.routing, err = r.handle.Prepare(ctx, r.stream, w.topk, w.weights); err != nil {
		return nil, err
	}
	// which also has the memory that a capture cannot allocate
	return w, w.check(func(src int) float32 { return weightOf(src, 0) })
}

// dispatch brings other weights along.
func (w *weightedRound) dispatch(ctx context.Context) error {
	received, err := w.r.handle.Dispatch(ctx, w.r.stream, ep.DispatchArgs{
		Routing: w.routing, Weights: w.weights, Rows: w.in,
	})
	if err == nil {
		received.Release()
	}
	return err
}

// check compares what rows weigh here.
func (w *weightedRound) check(want func(src int) float32) error {
	var experts weft.Tensor
	weights, per := w.routing.RowWeights, 1
	if l := w.r.handle.Spec().Layout; l == ep.RankMajor || l == ep.TokenMajor {
		per = w.r.handle.Spec().TopK
		weights = func() (t weft.Tensor) {
			experts, t = w.routing.RowSelections()
			return t
		}
	}
	raw := func(t weft.Tensor) ([]byte, error) {
		b := make([]byte, t.Bytes())
		if t.IsZero() {
			return nil, nil
		}
		return b, errors.Join(w.r.e.Sync(w.r.Comm), w.r.e.Download(w.r.Comm, b, t.Data))
	}
	got, err := raw(weights())
	if err != nil {
		return err
	}
	sources, err := raw(w.routing.SourceRanks())
	if err != nil {
		return err
	}
	local, err := raw(experts)
	if err != nil {
		return err
	}
	held := 0
	for i := range len(got) / 4 {
		src := int32(binary.LittleEndian.Uint32(sources[i/per*4:]))
		have := math.Float32frombits(binary.LittleEndian.Uint32(got[i*4:]))
		expect := float32(0)
		if src >= 0 && (local == nil || int32(binary.LittleEndian.Uint32(local[i*4:])) >= 0) {
			expect = want(int(src))
			held++
		}
		if have != expect {
			return fmt.Errorf("weight %d, of a row of rank %d, is %v, want %v", i, src, have, expect)
		}
	}
	if held == 0 {
		return errors.New("no row holds a token")
	}
	return nil
}

// TestWeightsInGraphsOnGPUs: a dispatch by a routing that brings weights can be captured, and each
// replay brings those that are there then.
func TestWeightsInGraphsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 3, min(s.MaxTokens, 9)).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					w, err := newWeightedRound(ctx, r, b)
					if err != nil {
						return err
					}
					g, err := r.capture(func() error { return w.dispatch(ctx) })
					if err != nil {
						return err
					}
					for turn := range m.times(3, 200) {
						if err := errors.Join(r.rest(ctx), w.setWeights(turn+1), eptest.Meet(r.Comm),
							g.Launch(r.stream.CUDA()), r.rest(ctx)); err != nil {
							return err
						}
						if err := w.check(func(src int) float32 { return weightOf(src, turn+1) }); err != nil {
							return fmt.Errorf("replay %d: %w", turn, err)
						}
					}
					return errors.Join(g.Close(), r.rest(ctx), w.Free())
				})
			})
		}
	})
}

// TestWeightsAfterMaskOnGPUs: in direct mode, weights still come for a routing that was
// prepared with a rank that is left out since, whose own stay. Through slots rows would move, and
// it is refused.
func TestWeightsAfterMaskOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.Abandons = true
		const ranks, late = 3, 1
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 5, min(s.MaxTokens, 9)).Batch()
				over := make(chan struct{})
				members(t, m, ranks, s, 2*time.Second, func(ctx context.Context, r *member) error {
					w, err := newWeightedRound(ctx, r, b)
					if err != nil {
						return err
					}
					err = eptest.Meet(r.Comm) // all have prepared
					if r.Rank() == late {
						return await(ctx, over) // it may have been left out before it had met everyone
					}
					if err != nil {
						return err
					}
					if r.Rank() == 0 {
						defer close(over)
					}
					if err := errors.Join(r.SetMask(ctx, late), w.setWeights(1)); err != nil {
						return err
					}
					err = w.dispatch(ctx)
					if way.name != "packed" && way.name != "token" {
						if !errors.Is(err, weft.ErrUnsupported) {
							return fmt.Errorf("weights for rows that would move: %w", err)
						}
						return nil
					}
					if err != nil {
						return err
					}
					return w.check(func(src int) float32 {
						if src == late {
							return weightOf(src, 0)
						}
						return weightOf(src, 1)
					})
				})
			})
		}
	})
}

// TestCombineWeightsOnGPUs: sums by weights that come with the combine are those of a dispatch that
// brought them, and so are those of the combine after it.
func TestCombineWeightsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for _, way := range []struct {
			name  string
			ranks int
			spec  ep.Spec
			n     int
		}{{"slots", 2, exactRows, 9}, {"many", 2, largeExactRows(), 40}, {
			"three ranks", 3, exactRows,
			3,
		}, {"pulled", 2, packedRows, 9}, {"nobody", 2, exactRows, 0}} {
			t.Run(way.name, func(t *testing.T) {
				if !m.holds(way.ranks) {
					t.Skip("ranks would share a GPU")
				}
				s := sized(way.spec, way.ranks)
				if s.Weighting != ep.Weighted || s.Reduction != ep.Exact {
					t.Fatalf("%+v has no weights at home", s)
				}
				b := evenly(s, way.ranks, 1, min(way.n, s.MaxTokens)).Batch()
				members(t, m, way.ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					topk, weights, in, out := round.Operands()
					sum := func(by weft.Tensor, combine func(got *ep.Received) error) ([]byte, error) {
						got, err := r.handle.Dispatch(ctx, r.stream, ep.DispatchArgs{
							TopK: topk, Weights: by, Rows: in,
						})
						if err != nil {
							return nil, err
						}
						defer got.Release()
						defer got.Routing.Release()
						var raw []byte
						for range 2 { // once by what is given, and once by what the routing has then
							if err := errors.Join(combine(got), r.e.Sync(r.Comm), r.Wait(ctx, r.stream)); err != nil {
								return nil, err
							}
							part := make([]byte, out.Bytes())
							if len(part) > 0 {
								if err := r.e.Download(r.Comm, part, out.Data); err != nil {
									return nil, err
								}
								if err := r.e.Upload(r.Comm, out.Data, make([]byte, len(part))); err != nil {
									return nil, err
								}
							}
							raw = append(raw, part...)
							combine = func(got *ep.Received) error {
								return r.handle.Combine(ctx, r.stream, ep.CombineArgs{
									Routing: got.Routing, Rows: got.Data, Out: out,
								})
							}
						}
						return raw, nil
					}
					want, err := sum(weights, func(got *ep.Received) error {
						return r.handle.Combine(ctx, r.stream, ep.CombineArgs{
							Routing: got.Routing, Rows: got.Data, Out: out,
						})
					})
					if err != nil {
						return err
					}
					// What is refused has not been made, and may be made again as it should be.
					refused := func(got *ep.Received) error {
						odd, wrong := weights, out
						odd.Data = unsafe.Add(odd.Data, 2)
						wrong.Shape = []int{out.Shape[0] + 1, out.Shape[1]}
						if err := r.handle.Combine(ctx, r.stream, ep.CombineArgs{
							Routing: got.Routing, Weights: odd, Rows: got.Data, Out: out,
						}); out.Shape[0] > 0 && !errors.Is(err, weft.ErrUnsupported) {
							return fmt.Errorf("weights at an odd address: %v", err)
						}
						if err := r.handle.Combine(ctx, r.stream, ep.CombineArgs{
							Routing: got.Routing, Weights: weights, Rows: got.Data, Out: wrong,
						}); !errors.Is(err, weft.ErrInvalid) {
							return fmt.Errorf("an output of another shape: %v", err)
						}
						if err := r.handle.Combine(ctx, r.stream, ep.CombineArgs{
							Routing: got.Routing, Rows: got.Data, Out: out,
						}); !errors.Is(err, weft.ErrInvalid) {
							return fmt.Errorf("a routing that has no weights: %v", err)
						}
						return nil
					}
					have, err := sum(weft.Tensor{}, func(got *ep.Received) error {
						if way.n > 0 {
							if err := refused(got); err != nil {
								return err
							}
						}
						return r.handle.Combine(ctx, r.stream, ep.CombineArgs{
							Routing: got.Routing, Weights: weights, Rows: got.Data, Out: out,
						})
					})
					if err != nil {
						return err
					}
					if !bytes.Equal(have, want) || bytes.Equal(have, make([]byte, len(have))) && len(have) > 0 {
						return errors.New("other sums than by the weights of the dispatch")
					}
					return round.Free()
				})
			})
		}
	})
}

// largeExactRows are of more tokens than have blocks of their own.
func largeExactRows() ep.Spec {
	s := exactRows
	s.MaxTokens = 40
	return s
}

package ep_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// skews are routings that leave ranks with everything or nothing.
var skews = []struct {
	name string
	pick func(s ep.Spec, ranks int) func(rank, token, k int) int32
}{
	{"all to one rank", func(s ep.Spec, ranks int) func(rank, token, k int) int32 {
		return func(_, _, k int) int32 { return int32(s.Experts/ranks + k) }
	}},
	{"none to one rank", func(s ep.Spec, ranks int) func(rank, token, k int) int32 {
		local := s.Experts / ranks
		return func(_, token, k int) int32 { return int32(local + (token+k)%(s.Experts-local)) }
	}},
	{"none", func(ep.Spec, int) func(rank, token, k int) int32 { return func(_, _, _ int) int32 { return -1 } }},
	{"none of one rank's", func(s ep.Spec, _ int) func(rank, token, k int) int32 {
		return func(rank, token, k int) int32 {
			if rank == 0 {
				return -1
			}
			return int32((token*5 + k) % s.Experts)
		}
	}},
	{"one expert", func(ep.Spec, int) func(rank, token, k int) int32 {
		return func(_, _, k int) int32 {
			if k == 1 {
				return 2
			}
			return -1
		}
	}},
	{"other ranks only", func(s ep.Spec, ranks int) func(rank, token, k int) int32 {
		local := s.Experts / ranks
		return func(rank, _, k int) int32 { return int32((rank+1)%ranks*local + k) }
	}},
}

// TestSkewOnGPUs has routings that leave ranks with everything or nothing, and ranks without
// tokens. Nothing is written beside what is to be written.
func TestSkewOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 3
		for i, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				most := s.MaxTokens
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					for j, skew := range skews {
						for k, tokens := range [][]int{{most, most, most}, {0, 0, 0}, {most, 0, 1}, {0, most, 3}, {1, 1, 1}} {
							if m.emulated && (i+j+k)%2 != 0 { // which takes long, so they take turns
								continue
							}
							c := routed(s, 7, tokens, skew.pick(s, ranks))
							if err := r.twice(ctx, c); err != nil {
								return fmt.Errorf("%s, tokens %v: %w", skew.name, tokens, err)
							}
						}
					}
					return nil
				})
			})
		}
	})
}

// twice makes an exchange by routing that travels with the rows and by routing that is known, in
// memory that holds poison.
func (r *member) twice(ctx context.Context, c eptest.Case) error {
	round, err := c.Batch().Round(r.e, r.Comm, r.handle)
	if err != nil {
		return err
	}
	if err := r.exchange(ctx, round); err != nil {
		return err
	}
	if err := round.Describe(); err != nil {
		return err
	}
	return errors.Join(r.rest(ctx), round.Dispatch(ctx, r.stream), round.Combine(ctx, r.stream), r.rest(ctx),
		round.Check(), round.Free())
}

// TestWildRoutingOnGPUs gives numbers that are no experts', which count as none.
func TestWildRoutingOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) { wildRouting(t, m, way.spec) })
		}
	})
}

func wildRouting(t *testing.T, m *gpuMachine, s ep.Spec) {
	const ranks = 2
	s = sized(s, ranks)
	s.TopK = 5
	members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
		for _, wide := range []bool{false, true} {
			wild := []int32{
				int32(s.Experts), math.MaxInt32, math.MinInt32, -2, int32(s.Experts) + 1, 1 << 16,
				1<<16 + 1, 1 << 30,
			}
			c := routed(s, 3, []int{min(s.MaxTokens, 40), 5}, func(rank, token, k int) int32 {
				switch (rank + token + k*k) % 4 {
				case 0:
					return wild[(token+k)%len(wild)]
				case 1:
					return -1
				default:
					return int32((token + k) % s.Experts)
				}
			})
			c.Wide, c.Given = wide, c.TopK
			c.TopK = make([][]int32, ranks)
			for rank, given := range c.Given {
				for i, e := range given {
					if e < 0 || int(e) >= s.Experts || slices.Contains(given[i-i%s.TopK:i], e) {
						e = -1
					}
					c.TopK[rank] = append(c.TopK[rank], e)
				}
			}
			if err := r.twice(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestTwiceTheSameOnGPUs has tokens select an expert several times, which they must not. What comes
// out is wrong, or nothing does; but no kernel leaves its memory, and the ranks go on.
func TestTwiceTheSameOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				s.TopK = 5
				members(t, m, ranks, s, gpuDeadline/20, func(ctx context.Context, r *member) error {
					for _, far := range []int{0, 1} {
						c := routed(s, 3, []int{s.MaxTokens, s.MaxTokens}, func(_, _, k int) int32 { return int32(k) })
						c.Given = make([][]int32, ranks)
						for rank, selected := range c.TopK {
							e := int32((rank + far) % ranks * (s.Experts / ranks))
							c.Given[rank] = slices.Repeat([]int32{e}, len(selected))
						}
						round, err := c.Batch().Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						if err := errors.Join(r.e.Sync(r.Comm), eptest.Meet(r.Comm)); err != nil {
							return err
						}
						err = round.PrepareDispatch(ctx, r.stream)
						if err == nil {
							err = errors.Join(round.Combine(ctx, r.stream), r.Wait(ctx, r.stream))
						}
						if err != nil && !errors.Is(err, weft.ErrTimeout) && !errors.Is(err, weft.ErrAborted) {
							return err
						}
						err = r.SetMask(ctx)
						for again := 0; err != nil && again < 5; again++ { // another rank may still wait
							err = r.SetMask(ctx)
						}
						if err := errors.Join(err, round.Free()); err != nil {
							return err
						}
						if err := r.batch(ctx, evenly(s, ranks, 1, min(s.MaxTokens, 9)).Batch()); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	})
}

// TestWordsOfOnesOnGPUs moves rows, scales and weights that hold what stands for a missing word,
// and once all sorts of NaNs.
func TestWordsOfOnesOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			for _, p := range []ep.Payload{ep.BF16, ep.FP16, ep.FP32, ep.FP8, ep.FP8UE8M0, ep.Opaque} {
				t.Run(fmt.Sprintf("%s/%v", way.name, p), func(t *testing.T) {
					s := sized(way.spec, ranks)
					s.Payload = p
					switch p {
					case ep.FP8:
						s.Hidden = 256
					case ep.FP8UE8M0:
						s.Hidden = 512
					case ep.Opaque:
						s.RowBytes, s.ScaleBytes, s.Output = 528, 16, weft.Float16
					case ep.BF16:
						s.Hidden = 8 // one word is all that shows that a row is there
					}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						for seed := range uint64(3) {
							c := evenly(s, ranks, seed, min(s.MaxTokens, 9))
							c.Ones, c.Wild, c.Biases = true, seed == 1, int(seed%3)
							if err := r.twice(ctx, c); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// TestDescribedAgainOnGPUs asks what rows are of one Routing after another in the same memory, the
// second with more rows.
func TestDescribedAgainOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, spec := range []ep.Spec{tokenRows, packedRows} {
			t.Run(spec.Layout.String(), func(t *testing.T) {
				s := sized(spec, ranks)
				s.Counts, s.Live = ep.HostCounts, 1
				few, many := evenly(s, ranks, 1, 1).Batch(), evenly(s, ranks, 2, s.MaxTokens).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					for range 3 { // of which two share their memory
						for _, b := range []*eptest.Batch{few, many} {
							round, err := b.Round(r.e, r.Comm, r.handle)
							if err != nil {
								return err
							}
							if err := errors.Join(round.Prepare(ctx, r.stream), round.Describe(), round.Free()); err != nil {
								return err
							}
						}
					}
					return nil
				})
			})
		}
	})
}

// TestAskedInCaptureOnGPUs asks a Routing, in a capture, for what has to be waited for: it has
// nothing to say, and the capture goes on.
func TestAskedInCaptureOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, 5).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					g, err := r.capture(func() error {
						if err := round.PrepareDispatch(ctx, r.stream); err != nil {
							return err
						}
						routing := round.Received().Routing
						if n := routing.Received(); n != 0 || !routing.SourceTokens().IsZero() || routing.Traffic().Selections != 0 {
							return fmt.Errorf("it says that %d rows came before any did", n)
						}
						return nil
					})
					if err != nil {
						return err
					}
					return errors.Join(g.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream), round.CheckReceived(),
						r.Err(), g.Close(), round.Free())
				})
			})
		}
	})
}

// TestMisplacedNumbersOnGPUs gives selections that begin within a number: they are refused, and the
// call can be made again.
func TestMisplacedNumbersOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, 5).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					topk, weights, in, _ := round.Operands()
					for _, bad := range []*weft.Tensor{&topk, &weights} {
						was := bad.Data
						bad.Data = unsafe.Add(was, 1)
						if _, err := r.handle.Dispatch(ctx, r.stream, ep.DispatchArgs{
							TopK: topk, Weights: weights, Rows: in,
						}); !errors.Is(err,
							weft.ErrUnsupported) || !strings.Contains(err.Error(), "copy them there") {
							return fmt.Errorf("numbers at %v: %w", bad.Data, err)
						}
						bad.Data = was
					}
					return errors.Join(r.exchange(ctx, round), round.Free())
				})
			})
		}
	})
}

// TestAskedAfterReplaysOnGPUs asks a Routing that a graph prepares what it says, after each of
// several replays with other selections.
func TestAskedAfterReplaysOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, contents = 2, 3
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				var batches []*eptest.Batch
				for seed := range uint64(contents) {
					batches = append(batches, evenly(s, ranks, seed, 5).Batch())
				}
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					g, err := newReplayed(ctx, r, "f", [][]*eptest.Batch{batches})
					if err != nil {
						return err
					}
					for i := range contents {
						if err := errors.Join(g.fresh(ctx, r, [][]*eptest.Batch{batches}, i),
							g.exec.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream)); err != nil {
							return err
						}
						if err := errors.Join(g.rounds[0].Describe(), g.check()); err != nil {
							return fmt.Errorf("replay %d: %w", i, err)
						}
					}
					return errors.Join(r.rest(ctx), g.close())
				})
			})
		}
	})
}

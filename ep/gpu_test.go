package ep_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// gpuCases is how many cases of the suite run for each number of ranks: WEFT_EP_CASES, 0 for all of
// them.
func gpuCases(t *testing.T) int {
	t.Helper()
	s, ok := os.LookupEnv("WEFT_EP_CASES")
	if !ok {
		return 60
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		t.Fatalf("WEFT_EP_CASES is %q, want a number of cases, 0 for all", s)
	}
	return n
}

// emulatedCases is the same for emulated GPUs, which are slow: `all` if all tests run.
func emulatedCases(t *testing.T, all int) int {
	if _, ok := os.LookupEnv("WEFT_EP_CASES"); ok {
		return gpuCases(t)
	}
	if emulate.Everything() && !testing.Short() {
		return all
	}
	return 2
}

// gpuDeadline bounds the waits of ranks on GPUs: an operation of the suite takes milliseconds, a
// kernel's compilation seconds, on processors that others use more.
const gpuDeadline = time.Minute

// TestOnGPUs runs the suite on ranks that are goroutines, spread over the GPUs that are there.
// Ranks that share a GPU need a hardware queue each: start it with CUDA_DEVICE_MAX_CONNECTIONS=32.
// With WEFT_EP_SHARED=0 none do.
func TestOnGPUs(t *testing.T) {
	contexts := ranktest.Real(t).Contexts
	cases := gpuCases(t)
	for _, n := range []int{1, 2, 3, 4, 8} {
		if n > len(contexts) && os.Getenv("WEFT_EP_SHARED") == "0" {
			continue
		}
		used := contexts[:min(n, len(contexts))]
		t.Run(fmt.Sprintf("%d ranks on %d GPUs", n, len(used)), func(t *testing.T) {
			engine := eptest.NewDevice(used, weft.WithDeadline(gpuDeadline)).OfSizes(n)
			t.Cleanup(func() {
				if err := engine.Close(); err != nil {
					t.Error(err)
				}
			})
			start := time.Now()
			eptest.RunSome(t, engine, cases)
			ran := "all"
			if cases > 0 {
				ran = strconv.Itoa(cases)
			}
			t.Logf("%d ranks on %d of %d GPUs: %s cases in %v, failed: %v",
				n, len(used), len(contexts), ran, time.Since(start).Round(time.Millisecond), t.Failed())
		})
	}
}

// TestOnEmulatedGPUs runs a little of the suite on kernels that the host's compiler has compiled,
// on a driver made of Go.
func TestOnEmulatedGPUs(t *testing.T) {
	m := emulatedMachine(t, 2, emulate.Options{Limit: 2 * time.Minute, Seed: 1, Tear: true})
	for _, n := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			engine := m.engine(t, n, gpuDeadline)
			eptest.RunSome(t, engine, emulatedCases(t, 60)) // those of GPUs
		})
	}
}

// TestApartOnGPUs runs some of the suite with blocks that send and others that receive, which
// otherwise only large batches have.
func TestApartOnGPUs(t *testing.T) {
	t.Cleanup(ep.SetApart())
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		for _, n := range []int{2, 3}[m.times(1, 0):] {
			t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
				eptest.RunSome(t, m.engine(t, n, gpuDeadline), m.times(2, 60))
			})
		}
	})
}

// TestBulkOnGPUs sends rows by bulk copies, however small, and such as go in several parts; with
// scales too, also of tokens that have rows at one rank alone.
func TestBulkOnGPUs(t *testing.T) {
	t.Cleanup(ep.SetBulk())
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		scaled := packedRows
		scaled.Payload, scaled.Output = ep.FP8, weft.BFloat16
		for _, way := range []struct {
			name   string
			spec   ep.Spec
			hidden []int
		}{{"packed", packedRows, []int{8, 40, 8200}}, {
			"token", tokenRows,
			[]int{8, 40, 8200},
		}, {"packed with scales", scaled, []int{128, 1280}}} {
			for _, hidden := range way.hidden {
				t.Run(fmt.Sprintf("%s/%d", way.name, hidden), func(t *testing.T) {
					s := sized(way.spec, ranks)
					s.Hidden = hidden
					batches := []*eptest.Batch{
						evenly(s, ranks, 1, 9).Batch(), evenly(s, ranks, 2, 1).Batch(),
						routed(s, 3, []int{0, 9}, spread(s, 3)).Batch(),
					}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						for i, b := range batches {
							if err := r.batch(ctx, b); err != nil {
								return fmt.Errorf("batch %d: %w", i, err)
							}
						}
						return nil
					})
					c, e := evenly(s, ranks, 4, 9), m.engine(t, ranks, gpuDeadline)
					c.InPlace = true
					if err := e.Ranks(ranks, func(comm *weft.Comm) error { return c.Do(e, comm) }); err != nil {
						t.Error(err)
					}
				})
			}
		}
	})
}

// TestManyOnGPUs has more experts than a block of a prepare counts at once, more than it has shared
// memory for, and blocks with more tokens.
func TestManyOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range []struct {
			name string
			spec ep.Spec
		}{{"packed", packedRows}, {"token", tokenRows}} {
			for _, n := range []struct{ experts, tokens, sms int }{
				{1200 * ranks, 700, 2},
				{2000 * ranks, 5, 1},
				{2 * ranks, 2100, 1},
			} {
				t.Run(fmt.Sprintf("%s/%d experts, %d tokens", way.name, n.experts, n.tokens), func(t *testing.T) {
					s := sized(way.spec, ranks)
					s.Experts, s.Hidden, s.SMs, s.MaxTokens, s.Capacity = n.experts, 8, m.sms(n.sms, ranks), n.tokens, 0
					c := routed(s, 1, []int{n.tokens, 1}, spread(s, 1))
					b := c.Batch()
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						if err := r.batch(ctx, b); err != nil {
							return err
						}
						round, err := b.Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						topk, weights, _, _ := round.Operands()
						routing, err := r.handle.Prepare(ctx, r.stream, topk, weights)
						if err := errors.Join(err, r.Wait(ctx, r.stream)); err != nil {
							return err
						}
						leaders, err := ep.Leaders(routing, s.TopK)
						want := map[[2]int]bool{} // tokens and ranks
						for i, e := range c.TopK[r.Rank()] {
							if e >= 0 {
								want[[2]int{i / s.TopK, int(e) / (s.Experts / ranks)}] = true
							}
						}
						if leaders != len(want) && err == nil {
							err = fmt.Errorf("tokens go as %d rows, want one for each rank that a token has, %d", leaders, len(want))
						}
						routing.Release()
						return errors.Join(err, round.Free())
					})
				})
			}
		}
	})
}

// TestCountsOnGPUs has counts by expert where there is no room for a block that only counts, where
// there are more experts than a block counts at once, and where the rows before are looked up in a
// table of many sources.
func TestCountsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		alone := 4 // so many ranks, of one SM each, have room for two blocks: one that moves rows, and a notify block
		if !m.emulated {
			alone = min(alone, len(m.Contexts))
		}
		for _, way := range []struct {
			name           string
			ranks, experts int
			sms, blocks    int // blocks: of a dispatch; 0: any
		}{
			{"one notify block", alone, 3, 1, 2},
			{"one notify block, many experts", alone, 4200, 1, 2},
			{"many experts", 2, 4200, 2, 0},
			{"a full table", 3, 2048, 2, 0},
			{"many sources", 4, 5, 2, 0},
		} {
			if !m.holds(way.ranks) {
				continue
			}
			t.Run(way.name, func(t *testing.T) {
				s := sized(exactRows, way.ranks)
				s.Experts, s.Hidden, s.SMs, s.MaxTokens = way.experts*way.ranks, 8, m.sms(way.sms, way.ranks), 9
				batches := []*eptest.Batch{evenly(s, way.ranks, 1, 9).Batch(), evenly(s, way.ranks, 2, 2).Batch()}
				members(t, m, way.ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					if n, _ := r.handle.SMs(); way.blocks != 0 && n != way.blocks {
						return fmt.Errorf("%d blocks, want %d", n, way.blocks)
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
	})
}

// TestSMsOnGPUs has handles say on how many multiprocessors their kernels run.
func TestSMsOnGPUs(t *testing.T) {
	opaque := ep.Spec{
		MaxTokens: 6, Layout: ep.RankMajor, Reduction: ep.Partial,
		Weighting: ep.Plain, Payload: ep.Opaque, RowBytes: 512,
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range []struct {
			name              string
			spec              ep.Spec
			dispatch, combine int
		}{
			// a warp for each of 6 tokens and 2 ranks, 8 to a block; as many to send as to sum, 4
			// to a block; and a notify block each
			{"exact", exactRows, 3, 7},
			{"packed", packedRows, 1, 1}, // 9 tokens, 16 to a block, none of them a notify block
			{"token", tokenRows, 4, 4},
			{"opaque", opaque, 2, 0},
		} {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				s.SMs = m.sms(s.SMs, ranks)
				if s.Payload == ep.Opaque {
					s.Hidden = 0
				}
				members(t, m, ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
					if dispatch, combine := r.handle.SMs(); dispatch != way.dispatch || combine != way.combine {
						return fmt.Errorf("dispatch %d, combine %d; want %d, %d", dispatch, combine, way.dispatch, way.combine)
					}
					return nil
				})
			})
		}
	})
}

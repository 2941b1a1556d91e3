package ep_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestEveryKernelOnGPUs runs every kernel that moves rows, on small batches: those for one purpose,
// and in two halves the general ones, with weights that come later. It is what compute-sanitizer
// has to see. Emulated GPUs run those for bf16, each in one of the two ways unless all tests run.
func TestEveryKernelOnGPUs(t *testing.T) {
	t.Cleanup(ep.SetBulk())
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		left := map[string]bool{}
		for _, name := range movers(t) {
			left[name] = true
		}
		run := func(s ep.Spec, ranks int) {
			if m.emulated && s.Payload != ep.BF16 && s.Payload != ep.Opaque {
				return
			}
			if m.emulated && ranks > 2 || !m.holds(ranks) {
				defer ep.SetCombineRanks(ranks)() // a kernel for many ranks is one for few as well
				s.Experts, ranks = s.Experts/ranks*2, 2
			}
			if !m.holds(ranks) {
				return
			}
			programs := ep.ProgramsOf(s, ranks)
			fresh := false
			for _, p := range programs {
				fresh = fresh || left[p]
				delete(left, p)
			}
			if !fresh {
				return
			}
			t.Run(strings.Join(programs, "; "), func(t *testing.T) {
				e := m.engine(t, ranks, gpuDeadline)
				forms := []bool{false, true}
				if m.emulated && !emulate.Everything() {
					forms = forms[len(left)%2:][:1]
				}
				for _, apart := range forms {
					c := evenly(s, ranks, 1, s.MaxTokens)
					c.Fused, c.Split, c.Later = !apart, apart, true
					if err := e.Ranks(ranks, func(comm *weft.Comm) error { return c.Do(e, comm) }); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
		for s, ranks := range smallSpecs() {
			run(s, ranks)
		}
		if missing := slices.Sorted(maps.Keys(left)); !m.emulated && m.holds(2) && len(missing) > 0 {
			t.Errorf("not run: %s", strings.Join(missing, ", "))
		}
	})
}

// TestScalesOnGPUs has scales column-major, and as powers of two, by the kernels for one purpose:
// for few tokens and for many, in pieces of all sizes, of rows that are quantised on the way and
// before.
func TestScalesOnGPUs(t *testing.T) {
	payloads := map[string]ep.Spec{
		"given":               {},
		"quantised":           {Quantize: weft.BFloat16},
		"quantised to powers": {Quantize: weft.BFloat16, PowerOfTwoScales: true},
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		ranks := 2
		if m.holds(3) && !m.emulated {
			ranks = 3
		}
		e := m.engine(t, ranks, gpuDeadline)
		for _, layout := range []ep.Layout{ep.ExpertMajor, ep.RankMajor} {
			for payload, s := range payloads {
				for kernel, k := range map[string]struct{ tokens, units int }{
					"few 1": {1, 1}, "many 1": {12, 1}, "many 2": {12, 2}, "many 4": {12, 4},
				} {
					s := s
					s.Layout, s.Payload, s.ScaleOrder, s.Counts = layout, ep.FP8, ep.ColumnMajorScales, ep.DeviceCounts
					s.Experts, s.TopK, s.MaxTokens, s.Hidden, s.SMs = 3*ranks, 3, k.tokens, 2560, 4*ranks
					s.Tuning.Dispatch = ep.KernelTuning{Protocol: ep.ValueProtocol, Units: k.units}
					if layout == ep.RankMajor {
						s.Weighting = ep.Plain
					}
					if s.ValidateOn(ep.GPUEngine, ranks) != nil {
						continue // what is quantised goes by fewer units
					}
					t.Run(fmt.Sprintf("%v/%s/%s", layout, payload, kernel), func(t *testing.T) {
						if all := ep.ProgramsOf(s, ranks); !strings.HasPrefix(all[1], "ep dispatch, "+kernel+",") {
							t.Fatalf("by %v", all)
						}
						c := evenly(s, ranks, 1, s.MaxTokens)
						c.Fused = true
						if err := e.Ranks(ranks, func(comm *weft.Comm) error { return c.Do(e, comm) }); err != nil {
							t.Fatal(err)
						}
					})
				}
			}
		}
	})
}

// TestColumnsOnGPUs has column-major scales of token-major rows, of which a warp sends eight of 32 tokens at a time: of
// one token, of as many as a warp takes and one more, of tokens that go nowhere, of rows that are dropped, of ranks
// without tokens, and while a rank is masked. A row has one scale more than two times eight.
func TestColumnsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for _, bulk := range []bool{false, true} {
			columns := func(ranks int) ep.Spec {
				s := sized(tokenRows, ranks)
				s.Payload, s.ScaleOrder, s.Hidden, s.MaxTokens, s.SMs = ep.FP8, ep.ColumnMajorScales, 17*ep.ScaleBlock, 100, 0
				s.Tuning.Dispatch.Blocks = 2
				if !bulk {
					s.Tuning.Dispatch.Bulk = -1
				}
				return s
			}
			for name, change := range map[string]func(*ep.Spec){
				"host's counts": func(s *ep.Spec) { s.Counts = ep.HostCounts },
				"GPU's counts":  func(*ep.Spec) {},
				"dropped rows":  func(s *ep.Spec) { s.Capacity, s.Overflow = 90, ep.OverflowDrop },
				"dropped rows, host's counts": func(s *ep.Spec) {
					s.Capacity, s.Overflow, s.Counts = 90, ep.OverflowDrop, ep.HostCounts
				},
			} {
				t.Run(fmt.Sprintf("%s/bulk %v", name, bulk), func(t *testing.T) {
					const ranks = 2
					s := columns(ranks)
					change(&s)
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						for i, tokens := range [][]int{{1, 0}, {66, 65}, {100, 99}, {0, 0}, {7, 100}} {
							pick := spread(s, uint64(i))
							b := routed(s, uint64(i), tokens, func(rank, token, k int) int32 {
								if token%7 == 3 {
									return -1
								}
								return pick(rank, token, k)
							}).Batch()
							if err := r.batch(ctx, b); err != nil {
								return fmt.Errorf("tokens %v: %w", tokens, err)
							}
						}
						return nil
					})
				})
			}
			t.Run(fmt.Sprintf("a masked rank/bulk %v", bulk), func(t *testing.T) {
				const ranks, out = 3, 1
				s := columns(ranks)
				b := evenly(s, ranks, 1, s.MaxTokens).Batch(out)
				over := make(chan struct{})
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					err := eptest.Meet(r.Comm) // all have their handles
					if r.Rank() == out {
						return await(ctx, over) // it may have been masked before it had met everyone
					}
					if err != nil {
						return err
					}
					if r.Rank() == 0 {
						defer close(over)
					}
					return errors.Join(r.SetMask(ctx, out), r.batch(ctx, b))
				})
			})
		}
	})
}

// TestSmallSpecs finds every kernel that moves rows in smallSpecs.
func TestSmallSpecs(t *testing.T) {
	left := map[string]bool{}
	for _, name := range movers(t) {
		left[name] = true
	}
	for s, ranks := range smallSpecs() {
		for _, p := range ep.ProgramsOf(s, ranks) {
			delete(left, p)
		}
	}
	if len(left) > 0 {
		t.Errorf("in no Spec: %v", slices.Sorted(maps.Keys(left)))
	}
}

// smallSpecs gives Specs, each for so many ranks, that together have every kernel that moves rows.
func smallSpecs() iter.Seq2[ep.Spec, int] {
	payloads := []ep.Spec{
		{Payload: ep.BF16},
		{Payload: ep.FP16},
		{Payload: ep.FP32},
		{Payload: ep.FP8, Quantize: weft.BFloat16},
		{Payload: ep.FP8, Quantize: weft.Float16},
		{Payload: ep.FP8, Quantize: weft.Float32},
	}
	return func(yield func(ep.Spec, int) bool) {
		gather := ep.Spec{
			Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain, Payload: ep.Opaque,
			RowBytes: 2560, MaxTokens: 1, Experts: 2, TopK: 2, SMs: 8, Counts: ep.DeviceCounts,
		}
		if !yield(gather, 2) {
			return
		}
		for _, layout := range []ep.Layout{ep.ExpertMajor, ep.RankMajor, ep.ExpertPacked, ep.TokenMajor} {
			for _, reduction := range []ep.Reduction{ep.Exact, ep.Partial, ep.PartialBySelection} {
				for _, p := range payloads {
					for _, protocol := range []ep.Protocol{ep.ValueProtocol, ep.FlagProtocol} {
						for _, units := range []int{1, 2, 4} {
							for _, of := range []struct{ tokens, hidden int }{{1, 2048}, {12, 2048}, {1, 2688}, {12, 2688}} {
								s := p
								s.Layout, s.Reduction, s.MaxTokens, s.Hidden = layout, reduction, of.tokens, of.hidden
								if layout == ep.RankMajor || layout == ep.TokenMajor {
									s.Weighting = ep.Plain
								}
								if layout == ep.ExpertMajor || layout == ep.RankMajor {
									s.Tuning = ep.Tuning{Dispatch: ep.KernelTuning{
										Protocol: protocol,
										Units:    units,
									}, Combine: ep.KernelTuning{Protocol: protocol}}
								}
								for _, ranks := range []int{2, 3, 5} {
									for _, topk := range []int{3, 4} { // row maps differ in that
										s.Experts, s.TopK, s.SMs, s.Counts = 3*ranks, topk, 4*ranks, ep.DeviceCounts
										if s.ValidateOn(ep.GPUEngine, ranks) == nil && !yield(s, ranks) {
											return
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// movers are the programs whose kernels move rows in one host: all but the one that counts, and those that carry rows
// between hosts, which TestBetweenGPUs runs.
func movers(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, s := range ep.Kernels("sm_90a") {
		if s.Name != "ep token counts" && !strings.Contains(s.Name, ", ports") {
			all = append(all, s.Name)
		}
	}
	if len(all) < 100 {
		t.Fatalf("only %d programs", len(all))
	}
	return all
}

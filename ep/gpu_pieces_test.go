package ep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestPiecesOnGPUs has batches of no, few and many tokens, of rows that are of whole pieces and of rows that are not:
// there are kernels for each. Emulated GPUs have every two of a kind of rows, their length and how many there are; with
// WEFT_TEST_ALL=1 all.
func TestPiecesOnGPUs(t *testing.T) {
	const ranks = 3
	names := []string{"rank-major", "partial", "quantised", "scales"}
	specs := map[string]ep.Spec{
		"rank-major": {Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain},
		"partial":    {Layout: ep.ExpertMajor, Reduction: ep.Partial},
		"quantised":  {Layout: ep.ExpertMajor, Payload: ep.FP8, Quantize: weft.BFloat16},
		"scales":     {Layout: ep.ExpertMajor, Payload: ep.FP8}, // which have no kernel for whole pieces
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for i, name := range names {
			s := specs[name]
			for j, hidden := range []int{640, 1024} {
				for k, most := range []int{2, 7, 40} {
					if m.emulated && !emulate.Everything() && (i+j+k)%2 > 0 {
						continue
					}
					units := 1 + most/40
					t.Run(fmt.Sprintf("%s/%d of %d units", name, hidden, units), func(t *testing.T) {
						s := sized(s, ranks)
						s.Hidden, s.MaxTokens = hidden, most
						s.Tuning.Dispatch = ep.KernelTuning{Protocol: ep.ValueProtocol, Units: units}
						programs := ep.ProgramsOf(s, ranks)
						if whole := hidden == 1024 && name != "scales"; strings.HasSuffix(programs[1], ", whole") != whole {
							t.Fatalf("by %v", programs)
						}
						var batches []*eptest.Batch
						for i, tokens := range [][]int{{1, 1, 1}, {most, 0, 1}, {0, 0, 0}, {most, most, most}, {0, most, 0}, {1, 0, 1}} {
							batches = append(batches, routed(s, uint64(i), tokens, spread(s, uint64(i))).Batch())
						}
						members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) (err error) {
							for i, b := range batches {
								if e := r.batch(ctx, b); e != nil {
									err = errors.Join(err, fmt.Errorf("batch %d: %w", i, e))
								}
							}
							return err
						})
					})
				}
			}
		}
	})
}

package gpu_test

import (
	"context"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// TestLargeOnGPUs runs messages of 64 MiB, and small ones between them.
func TestLargeOnGPUs(t *testing.T) {
	const large = 64 << 20
	g := ranktest.Real(t)
	for _, p := range []plantest.Program{
		{Name: "two-shot", Build: func() *plan.Plan { return plantest.TwoShot(2) }},
		{Name: "direct two-shot", Build: func() *plan.Plan { return directTwoShot(2, 16) }},
		{Name: "packet one-shot", Build: func() *plan.Plan { return onePacketShot(2, 16) }},
		{Name: "two-phase packets", Build: func() *plan.Plan { return plantest.TwoPhasePackets(3) }},
		{Name: "pipelined all-to-all", Build: func() *plan.Plan { return plantest.Pipelined(3) }},
		{Name: "sends through ports", Build: func() *plan.Plan { return plantest.Sends(3, 1) }},
	} {
		t.Run(p.Name, func(t *testing.T) {
			f := build(t, p.Build())
			chunk := large / max(f.Ranks[0].Input, f.Ranks[0].Output) / 16 * 16
			run(t, g, len(f.Ranks), 2*large+memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
				x, err := r.Load(ctx, f)
				if err != nil {
					return err
				}
				for n, l := range []launchOf{
					{dtype: weft.BFloat16, chunk: 64},
					{dtype: weft.BFloat16, chunk: chunk, window: true},
					{dtype: weft.BFloat16, chunk: 1 << 10},
					{dtype: weft.BFloat16, chunk: chunk},
					{dtype: weft.BFloat16, chunk: chunk - 16, shift: 2},
				} {
					if err := r.launch(ctx, x, l, uint64(n)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

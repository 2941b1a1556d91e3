package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// TestRoomBesideAGroup has executors share what a group leaves of a small GPU: room that only makes launches overlap
// keeps out nobody, neither before plans run nor after. What finds none is told what gives it some.
func TestRoomBesideAGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	const ranks = 2
	g := ranktest.Emulated(t, cudatest.Config{Devices: 1}, emulate.Options{Seed: 6})
	file := build(t, plantest.OneShotPackets(ranks, plan.Sum))
	wide := build(t, onePacketShot(ranks, 2))
	run(t, g, ranks, 1<<20, executor.Options{}, patience, func(ctx context.Context, r *rank) (err error) {
		group, err := collective.New(ctx, r.comm, collective.Options{DTypes: []weft.DType{weft.BFloat16}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, group.Close()) }()
		for n := range 2 { // the group leaves a block a rank for each
			other, err := executor.New(ctx, r.comm, executor.Options{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, other.Close()) }()
			p, err := other.Load(ctx, file)
			if err == nil {
				err = r.launch(ctx, p, launchOf{dtype: weft.BFloat16, chunk: 64}, uint64(n))
			}
			if err != nil {
				return fmt.Errorf("executor %d: %w", n, err)
			}
			_, err = other.Load(ctx, wide)
			refused := errors.Is(err, weft.ErrUnsupported) && strings.Contains(err.Error(), "give groups and handles fewer SMs")
			if n == 1 && !refused {
				return fmt.Errorf("a plan of two blocks, where there is room for one: %w", err)
			}
		}
		return nil
	})
}

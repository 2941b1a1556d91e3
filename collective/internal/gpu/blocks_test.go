package gpu

import (
	"context"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
)

// TestLaunched: a launch has as many blocks as have something to do, but so many that they raise all counts at once,
// unless a call allows fewer.
func TestLaunched(t *testing.T) {
	for _, tc := range []struct{ blocks, most, busy, want int }{
		{1, 1, 0, 1},
		{24, 24, 0, fewest},
		{24, 24, 7, 7},
		{24, 24, 25, 24},
		{24, 3, 25, 3},
		{300, 300, 1, fewest},
		{900, 900, 1, 8},
		{300, 2, 1, 2},
		{300, 1, 1000, 1},
	} {
		e := &Engine{blocks: tc.blocks, most: tc.most}
		if got := e.launched(tc.busy); got.X != uint32(tc.want) {
			t.Errorf("%+v: %d blocks", tc, got.X)
		}
	}
}

// TestBlocksOfCallsOnEmulatedGPUs: kernels of which a block counts for several, and those that have blocks to send and
// others to take, have no more than a call allows.
func TestBlocksOfCallsOnEmulatedGPUs(t *testing.T) {
	const n = 16 << 10
	emulated(t, 2, func(ctx context.Context, r *rank) error {
		e, at := r.Engine, r.window.Pointer()
		tensor := func(from, n int) weft.Tensor { return weft.DeviceTensor(at.Add(4*from), weft.Float32, n) }
		x, y, half, whole := tensor(0, n), tensor(n, n), tensor(0, n/2), tensor(n, n)
		words := weft.DeviceTensor(at.Add(4*3*n), weft.Uint64, 4)
		for _, tc := range []struct {
			call spec.Call
			name string
			grid func() cuda.Dim
		}{
			{
				spec.Call{Collective: spec.AllReduce, In: x, Out: y, Norm: &spec.Norm{Gamma: tensor(2*n, 128)}},
				"all-reduce-norm/one-shot", func() cuda.Dim { return e.norms[weft.Float32].oneShot.Grid() },
			},
			{
				spec.Call{Collective: spec.AllReduce, In: x, Out: y, Norm: &spec.Norm{Gamma: tensor(2*n, 128)}},
				"all-reduce-norm/two-shot", func() cuda.Dim { return e.norms[weft.Float32].twoShot.Grid() },
			},
			{
				spec.Call{Collective: spec.AllGather, In: half, Out: whole, Words: spec.Words{Progress: words}},
				"all-gather/progress", func() cuda.Dim { return e.words.gathers[encodingOf(weft.Float32)].Grid() },
			},
			{
				spec.Call{Collective: spec.AllReduce, In: x, Out: y},
				"all-reduce/push-push", func() cuda.Dim { return e.reductions[weft.Float32].push.Grid() },
			},
			{
				spec.Call{Collective: spec.AllReduce, In: x, Out: y, Symmetric: true},
				"all-reduce/pull-push", func() cuda.Dim { return e.reductions[weft.Float32].large.bulk.Grid() },
			},
			{
				spec.Call{Collective: spec.AllGather, In: half, Out: whole, Symmetric: true},
				"all-gather/few-sm", func() cuda.Dim { return e.bulkMove.Grid() },
			},
			{
				spec.Call{Collective: spec.AllReduce, In: x, Out: y},
				"all-reduce/two-shot", func() cuda.Dim { return e.reductions[weft.Float32].twoShot.Grid() },
			},
		} {
			c := tc.call
			c.Algorithm = tc.name
			for _, blocks := range []int{0, 1} {
				c.Blocks = blocks
				if err := c.Check(r.comm.Rank(), e.ranks); err != nil {
					return err
				}
				if _, err := e.Run(ctx, nil, &c, nil); err != nil {
					return fmt.Errorf("%s: %w", tc.name, err)
				}
				got := int(tc.grid().X)
				if got < 1 || blocks > 0 && got > blocks || blocks == 0 && got < 2 {
					return fmt.Errorf("%s: %d blocks, and the call has %d", tc.name, got, blocks)
				}
			}
		}
		return nil
	})
}

package gpu

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// engines runs a body on ranks that have an emulated GPU each, and makes engines as the options say.
func engines(t *testing.T, ranks int, m cudatest.Config, o Options, body func(ctx context.Context, e *Engine) error) {
	t.Helper()
	m.Devices = ranks
	g := ranktest.Emulated(t, m, emulate.Options{Seed: 1, Tear: true})
	err := ranktest.Run(ranks, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(20*time.Second))
	}, func(ctx context.Context, comm *weft.Comm) error {
		o := o
		o.Model = model
		e, err := New(ctx, comm, o)
		if err == nil {
			err = body(ctx, e)
			_, again := e.Close()
			err = errors.Join(err, again)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPushedPiecesHavePlacesOnEmulatedGPUs: a launch has no more blocks than staging memory has places for, also where
// so many blocks count for so many others that a launch has more.
func TestPushedPiecesHavePlacesOnEmulatedGPUs(t *testing.T) {
	const ranks, count = 2, 4000
	m := cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 132}}
	o := Options{Staging: turns * (leastTurn(ranks) + lineBytes), SMs: 132}
	engines(t, ranks, m, o, func(ctx context.Context, e *Engine) (err error) {
		memory, err := e.comm.Device().Context().Alloc(2 * count)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, memory.Close()) }()
		x := weft.DeviceTensor(memory.Pointer(), weft.BFloat16, count)
		c := &spec.Call{Collective: spec.AllReduce, In: x, Out: x, Algorithm: "all-reduce/push-push"}
		if err := c.Check(e.comm.Rank(), ranks); err != nil {
			return err
		}
		if _, err := e.Run(ctx, nil, c, nil); err != nil {
			return err
		}
		k := e.reductions[weft.BFloat16].large.push
		used, room := int(k.Grid().X)*pushDepth*ranks*int(k.Args.piece), int(k.Args.results-k.Args.rows)
		if used > room || e.least() <= int(k.Grid().X) {
			return fmt.Errorf("%d blocks, others have at least %d: pieces take %d bytes of %d", k.Grid().X, e.least(), used,
				room)
		}
		return nil
	})
}

// TestOperandsOfAllRanksOnEmulatedGPUs: where a rank was masked when a window was made, there is no operand at all.
func TestOperandsOfAllRanksOnEmulatedGPUs(t *testing.T) {
	const ranks, out = 3, 2
	survived := make(chan struct{}, ranks)
	emulated(t, ranks, func(ctx context.Context, r *rank) error {
		var w *weft.Window
		if r.comm.Rank() == out {
			for range ranks - 1 {
				<-survived
			}
		} else {
			err := r.comm.SetMask(ctx, out)
			if err == nil {
				w, err = r.comm.Alloc(ctx, 4096)
			}
			survived <- struct{}{}
			if err != nil {
				return err
			}
		}
		if err := r.comm.SetMask(ctx); err != nil || w == nil {
			return err
		}
		at, ok := r.find(weft.DeviceTensor(w.Pointer(), weft.Float32, 16))
		err := w.Close()
		if ok || at != (operands{}) {
			return fmt.Errorf("rank %d has none of it, and operands are %v", out, at)
		}
		return err
	})
}

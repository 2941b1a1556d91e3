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

// registers is an emulated GPU whose kernels have as many registers as they may have where four blocks share an SM.
func registers(sms int) cudatest.Config {
	return cudatest.Config{Registers: 128, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: sms}}
}

// TestMessagesHaveRoomOnEmulatedGPUs: between two ranks an SM holds six blocks of other kernels, and four of messages.
func TestMessagesHaveRoomOnEmulatedGPUs(t *testing.T) {
	const ranks, n = 2, 1 << 20
	engines(t, ranks, registers(4), Options{Staging: 4 << 20, SMs: 1}, func(ctx context.Context, e *Engine) (err error) {
		memory, err := e.comm.Device().Context().Alloc(2 * n)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, memory.Close()) }()
		tensor := func(at int) weft.Tensor { return weft.DeviceTensor(memory.Pointer().Add(at), weft.Uint8, n) }
		other := 1 - e.comm.Rank()
		c := &spec.Call{Collective: spec.PointToPoint, Transfers: []spec.Transfer{
			{Tensor: tensor(0), Peer: other}, {Tensor: tensor(n), Peer: other, Receive: true},
		}}
		if err := errors.Join(c.Check(e.comm.Rank(), ranks), e.Exchange(ctx, nil, c, nil)); err != nil {
			return err
		}
		if grid := e.messages.Grid().X; e.blocks != 6 || grid != 4 {
			return fmt.Errorf("%d blocks of messages where others have %d", grid, e.blocks)
		}
		return nil
	})
}

// TestNormsHaveRoomOnEmulatedGPUs: a block with a norm needs an SM that no block of another owner can be on.
func TestNormsHaveRoomOnEmulatedGPUs(t *testing.T) {
	o := Options{Staging: smallStaging, SMs: 1}
	engines(t, 2, registers(4), o, func(ctx context.Context, e *Engine) error {
		other, err := New(ctx, e.comm, Options{Staging: smallStaging, SMs: 1, Model: model})
		if err != nil {
			return err
		}
		refused := e.prepareNorm(ctx, weft.BFloat16)
		if _, err := other.Close(); err != nil {
			return err
		}
		if !errors.Is(refused, weft.ErrUnsupported) {
			return fmt.Errorf("with the room of another owner: %w", refused)
		}
		if err := e.prepareNorm(ctx, weft.BFloat16); err != nil {
			return fmt.Errorf("alone: %w", err)
		}
		if grid := e.norms[weft.BFloat16].grid(100, e.most).X; grid != 1 {
			return fmt.Errorf("%d blocks on an SM", grid)
		}
		return nil
	})
}

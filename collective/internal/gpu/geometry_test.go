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
	const ranks, count = 3, 4000
	const sms = 2000
	m := cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: sms}}
	o := Options{Staging: turns * (leastTurn(ranks) + lineBytes), SMs: sms}
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
		k := e.reductions[weft.BFloat16].push
		used, room := int(k.Grid().X)*pushDepth*int(k.Args.places)*int(k.Args.piece), int(k.Args.results-k.Args.rows)
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
	made, survived := make(chan struct{}), make(chan struct{}, ranks)
	emulated(t, ranks, func(ctx context.Context, r *rank) error {
		var w *weft.Window
		if r.comm.Rank() == out {
			close(made)
			for range ranks - 1 {
				<-survived
			}
		} else {
			<-made // else its group could learn while it is made that it was left out
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

// registers is an emulated GPU whose kernels have as many registers as they may have where a block fills an SM.
func registers(sms int) cudatest.Config {
	return cudatest.Config{Registers: 128, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: sms}}
}

// TestMessagesHaveRoomOnEmulatedGPUs: the ways of messages have all threads of the SMs that a group may fill.
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
		if grid, block := e.messages.Grid().X, e.messages.Block().X; e.blocks != 1 || grid != 1 || block != wide {
			return fmt.Errorf("%d blocks of %d threads for messages where others have %d", grid, block, e.blocks)
		}
		return nil
	})
}

// TestNormsHaveRoomOnEmulatedGPUs: a block with a norm fills an SM, beside the room of another owner.
func TestNormsHaveRoomOnEmulatedGPUs(t *testing.T) {
	o := Options{Staging: smallStaging, SMs: 1}
	engines(t, 2, registers(4), o, func(ctx context.Context, e *Engine) error {
		other, err := New(ctx, e.comm, Options{Staging: smallStaging, SMs: 1, Model: model})
		if err != nil {
			return err
		}
		err = e.prepareNorm(ctx, weft.BFloat16)
		_, failed := other.Close()
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		if grid := normGrid(100, e.most).X; grid != 1 {
			return fmt.Errorf("%d blocks on an SM", grid)
		}
		return nil
	})
}

// TestSpread: a launch has a thread for each vector, on as many SMs as there are.
func TestSpread(t *testing.T) {
	for _, c := range []struct{ vectors, blocks, wantBlocks, wantThreads int }{
		{0, 99, fewest, narrow},
		{1, 99, fewest, narrow},
		{129, 99, fewest, narrow},
		{600, 99, 5, narrow},
		{99 * 128, 99, 99, narrow},
		{99*128 + 1, 99, 99, 160},
		{16384, 99, 99, 192},
		{99 * 512, 99, 99, wide},
		{1 << 30, 99, 99, wide},
		{1000, 1, 1, wide},
		{400, 1, 1, 416},
		{1, 300, fewest, narrow},
		{1, 1000, 8, narrow},
	} {
		e, l := &Engine{blocks: c.blocks, most: c.blocks, ranks: 3}, &shaped{}
		if e.spread(l, c.vectors); l.blocks != c.wantBlocks || l.threads != c.wantThreads {
			t.Errorf("%d vectors, %d blocks at most: %+v, want %d blocks of %d threads", c.vectors, c.blocks, *l, c.wantBlocks,
				c.wantThreads)
		}
	}
}

type shaped struct{ blocks, threads int }

func (s *shaped) SetGrid(d cuda.Dim)  { s.blocks = int(d.X) }
func (s *shaped) SetBlock(d cuda.Dim) { s.threads = int(d.X) }

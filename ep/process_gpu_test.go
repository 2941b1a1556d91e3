//go:build unix

package ep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// gpuExchange is the part of a rank on a GPU that does what it is told.
type gpuExchange struct {
	member
	spec  ep.Spec
	round *eptest.Round
}

type gpuExchangeArgs struct {
	ID       string
	GPUs     processes.GPUs
	Way      int
	Hosts    bool // each rank is on one of its own
	Op       string
	Seed     uint64
	Masked   []int
	Deadline time.Duration
}

func (p *gpuExchange) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a gpuExchangeArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		return nil, p.join(ctx, r, a)
	case "begin":
		var err error
		if p.round, err = p.batchOf(a).Round(p.e, p.Comm, p.handle); err != nil {
			return nil, err
		}
		switch a.Op {
		case "dispatch":
			err = p.round.Prepare(ctx, p.stream)
		case "combine", "combine backward", "dispatch backward", "gradients":
			err = p.round.PrepareDispatch(ctx, p.stream)
		}
		return nil, errors.Join(err, p.rest(ctx))
	case "fail":
		start := time.Now()
		err := p.fail(ctx, a.Op)
		return time.Since(start), err
	case "go on":
		p.round.Release()
		return nil, errors.Join(p.usable(), p.SetMask(ctx, a.Masked...))
	case "batch":
		return nil, p.train(ctx, p.batchOf(a))
	case "exchange":
		return nil, p.batch(ctx, p.batchOf(a))
	case "close":
		p.round.Release()
		return nil, errors.Join(p.handle.Close(), p.e.Close(), p.Close())
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

// fail makes a call that some rank will not, or calls until one dies.
func (p *gpuExchange) fail(ctx context.Context, op string) (err error) {
	switch op {
	case "prepare":
		err = p.round.Prepare(ctx, p.stream)
	case "prepare dispatch":
		err = p.round.PrepareDispatch(ctx, p.stream)
	case "dispatch":
		err = p.round.Dispatch(ctx, p.stream)
	case "send":
		err = p.round.SendPrepareDispatch(ctx, p.stream)
	case "receive":
		err = p.round.Receive(ctx)
	case "combine":
		err = p.round.Combine(ctx, p.stream)
	case "combine backward":
		err = p.round.CombineBackward(ctx, p.stream, true)
	case "dispatch backward":
		err = p.round.DispatchBackward(ctx, p.stream, true)
	case "gradients":
		for err == nil {
			err = errors.Join(p.round.Backward(ctx, p.stream), p.Wait(ctx, p.stream))
		}
	}
	if err == nil {
		err = p.Wait(ctx, p.stream)
	}
	return err
}

// train is a batch of its own, with gradients.
func (p *gpuExchange) train(ctx context.Context, b *eptest.Batch) error {
	round, err := b.Round(p.e, p.Comm, p.handle)
	if err != nil {
		return err
	}
	if err := errors.Join(p.exchange(ctx, round), round.Backward(ctx, p.stream), p.Wait(ctx, p.stream)); err != nil {
		return err
	}
	return errors.Join(round.CheckGradients(), round.Free())
}

func (p *gpuExchange) batchOf(a gpuExchangeArgs) *eptest.Batch {
	c := evenly(p.spec, p.Size(), a.Seed, 6)
	c.Operand = eptest.ReceivedOperand
	return c.Batch(a.Masked...)
}

func (p *gpuExchange) join(ctx context.Context, r *processes.Rank, a gpuExchangeArgs) error {
	options := []weft.Option{weft.WithDeadline(a.Deadline)}
	if a.Hosts {
		options = append(options, weft.WithHostID(fmt.Sprint("host ", r.Rank)))
	}
	var err error
	if p.Comm, err = r.JoinOnGPU(a.ID, a.GPUs, options...); err != nil {
		return err
	}
	p.e = eptest.NewDeviceRank(p.Comm)
	p.stream = p.e.Stream(p.Comm)
	p.spec = sized(ways[a.Way].spec, r.Size)
	p.handle, err = ep.NewHandle(ctx, p.Comm, p.spec)
	return err
}

// TestKillOnGPUs kills a rank while the others are inside an operation, or while all make one after
// another. The others say which one at once, their GPUs work as before, and without it they go on.
func TestKillOnGPUs(t *testing.T) {
	run := func(t *testing.T, emulated bool) {
		const size, victim = 3, 1
		gpus := processes.GPUs{Emulated: emulated, Dir: t.TempDir()}
		all := []string{"exact", "value", "flag", "rank", "direct", "packed", "token"}
		for i, op := range []struct {
			name      string
			ways, few []string // few: in short tests, and on emulated GPUs
		}{
			{"prepare", all, []string{"packed", "token"}},
			{"prepare dispatch", all, all},
			{"dispatch", all, []string{"packed", "token"}},
			// to rows nobody sends before all have begun
			{"receive", []string{"exact", "value", "flag", "rank"}, []string{"exact"}},
			{"combine", all, all},
			{"combine backward", all, []string{"exact", "direct", "packed", "token"}},
			{"dispatch backward", all, []string{"exact", "token"}},
			{"gradients", all, []string{"exact", "token"}},
		} {
			for way := range ways {
				among := op.ways
				if testing.Short() || emulated {
					among = op.few
				}
				if emulated && !emulate.Everything() {
					among = among[i%len(among):][:1] // each once
				}
				if !slices.Contains(among, ways[way].name) {
					continue
				}
				t.Run(ways[way].name+"/"+op.name, func(t *testing.T) {
					args := gpuExchangeArgs{GPUs: gpus, Way: way, Op: op.name, Deadline: 20 * time.Second}
					crew := processes.Start(t, "gpu-exchange", size)
					args.ID = crew.ID()
					crew.Must(without(size), "join", args)
					crew.Must(without(size), "begin", args)
					survivors := without(size, victim)
					switch op.name {
					case "receive":
						args.Op = "send"
						crew.Must(survivors, "fail", args) // which it does not
						args.Op = op.name
					case "gradients":
						crew.Tell(victim, "fail", args)
					}
					for _, r := range survivors {
						crew.Tell(r, "fail", args)
					}
					survive(t, crew, victim, survivors, "batch", args)
				})
			}
		}
	}
	t.Run("emulated", func(t *testing.T) {
		emulate.Need(t)
		run(t, true)
	})
	t.Run("real", func(t *testing.T) {
		ranktest.Real(t)
		run(t, false)
	})
}

// survive kills a rank for which the others wait. They name it, leave it out and go on with exchanges of a kind.
func survive(t *testing.T, crew *processes.Crew, victim int, survivors []int, next string, args gpuExchangeArgs) {
	t.Helper()
	time.Sleep(50 * time.Millisecond) // they are inside, or will be: the same is true
	crew.Kill(victim)
	for r, a := range crew.Answers(survivors) {
		if a.Peer != victim || a.Cause != "died" {
			t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
		}
	}
	args.Masked = []int{victim}
	crew.Must(survivors, "go on", args)
	for args.Seed = range 3 {
		crew.Must(survivors, next, args)
	}
	crew.Must(survivors, "close", args)
}

// TestKillBetweenGPUs has processes on several hosts exchange by libfabric. One is killed while the others wait for
// it, and they go on without it.
func TestKillBetweenGPUs(t *testing.T) {
	fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Signals: 1}).Close()
	run := func(t *testing.T, emulated bool) {
		const size, victim = 3, 1
		for way := range ways {
			if name := ways[way].name; name != "exact" && name != "token" && (emulated || name != "flag" && name != "packed") {
				continue
			}
			t.Run(ways[way].name, func(t *testing.T) {
				args := gpuExchangeArgs{
					GPUs: processes.GPUs{Emulated: emulated, Dir: t.TempDir()}, Way: way, Hosts: true, Op: "prepare dispatch",
					Deadline: 20 * time.Second,
				}
				crew := processes.Start(t, "gpu-exchange", size)
				args.ID = crew.ID()
				crew.Must(without(size), "join", args)
				for args.Seed = range 3 {
					crew.Must(without(size), "exchange", args)
				}
				crew.Must(without(size), "begin", args)
				survivors := without(size, victim)
				for _, r := range survivors {
					crew.Tell(r, "fail", args)
				}
				survive(t, crew, victim, survivors, "exchange", args)
			})
		}
	}
	t.Run("emulated", func(t *testing.T) {
		emulate.Need(t)
		run(t, true)
	})
	t.Run("real", func(t *testing.T) {
		ranktest.Real(t)
		run(t, false)
	})
}

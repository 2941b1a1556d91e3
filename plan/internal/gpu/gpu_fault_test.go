package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// waiting are plans with waits of every kind for a rank that does not come.
var waiting = []plantest.Program{
	{Name: "packets", Build: func() *plan.Plan { return plantest.TwoPhasePackets(3) }},
	{Name: "pipelines", Build: func() *plan.Plan { return plantest.Pipelined(3) }},
	{Name: "signals", Build: func() *plan.Plan { return plantest.TwoShot(3) }},
	{Name: "ports", Build: func() *plan.Plan { return plantest.Sends(3, 1) }},
}

// testAbsent lets a rank make no launch: the others' error names the plan, the block, the operation and that rank, and
// all go on after SetMask.
func testAbsent(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 2
	l := launchOf{dtype: weft.BFloat16, chunk: 48}
	plans := waiting
	if g.Machine != nil && !emulate.Everything() {
		plans = plans[:2]
	}
	for _, p := range plans {
		f := build(t, p.Build())
		compiled := func(ctx context.Context, r *rank) error {
			x, err := r.Load(ctx, f)
			if err != nil {
				return err
			}
			return r.launch(ctx, x, l, 1)
		}
		run(t, g, ranks, memoryBytes, executor.Options{}, patience, compiled)
		t.Run(p.Name, func(t *testing.T) {
			var together sync.WaitGroup // SetMask comes when all have their error
			together.Add(ranks)
			// Within the deadline there are launches, too, which a busy machine takes long for.
			run(t, g, ranks, memoryBytes, executor.Options{}, 5*time.Second, func(ctx context.Context, r *rank) error {
				x, err := r.Load(ctx, f)
				if err == nil {
					err = r.launch(ctx, x, l, 1)
				}
				if err == nil && r.comm.Rank() != absent {
					out, in, _, again := r.put(f, l, 2)
					late := x.Execute(ctx, nil, out, in)
					peer, ok := errors.AsType[*weft.PeerError](late)
					named := ok && peer.Rank == absent && errors.Is(late, weft.ErrTimeout)
					for _, word := range []string{"plan " + f.Name, "block", "operation"} {
						named = named && strings.Contains(late.Error(), word)
					}
					// A rank that waits for one that waits learns of it by the abort word.
					if !named && !errors.Is(late, weft.ErrAborted) && !errors.Is(late, weft.ErrTimeout) {
						again = errors.Join(again, fmt.Errorf("without rank %d: %w", absent, late))
					}
					t.Logf("rank %d: %v", r.comm.Rank(), late)
					err = again
				}
				together.Done()
				together.Wait()
				if err := errors.Join(err, r.comm.SetMask(ctx)); err != nil {
					return err
				}
				for n := range 3 {
					if err := r.launch(ctx, x, l, uint64(n)); err != nil {
						return fmt.Errorf("after SetMask: %w", err)
					}
				}
				return nil
			})
		})
	}
}

func TestAbsentRankOnEmulatedGPUs(t *testing.T) { testAbsent(t, emulated(t, 3, 1)) }

// TestAbsentRankOnGPUs is the same on real ones.
func TestAbsentRankOnGPUs(t *testing.T) { testAbsent(t, ranktest.Real(t)) }

// aborts runs a plan again and again, on messages that grow, until a rank aborts: while it launches, or while others
// wait for its launch. All are told by whom, and when all go on, launches are right again, whatever memory some ranks
// had made by then.
func aborts(f *plan.File) func(ctx context.Context, r *rank) error {
	sizes := []int{16, 5 << 10, 48, 12 << 10, 20 << 10, 35 << 10}
	loaded := make([]sync.WaitGroup, 2*len(f.Ranks)) // of each round
	for i := range loaded {
		loaded[i].Add(len(f.Ranks))
	}
	return func(ctx context.Context, r *rank) error {
		pauses := rand.New(rand.NewPCG(uint64(r.comm.Rank()), 5))
		met := 0
		defer func() {
			for ; met < len(loaded); met++ { // a rank that has failed keeps nobody
				loaded[met].Done()
			}
		}()
		for round := range loaded {
			x, err := r.Load(ctx, f)
			loaded[round].Done()
			met++
			loaded[round].Wait()
			if err != nil {
				return err
			}
			culprit, pause := round%r.comm.Size(), time.Duration(pauses.IntN(20))*time.Millisecond
			var aborting sync.WaitGroup
			switch abort := func() { time.Sleep(pause); r.comm.Abort() }; {
			case r.comm.Rank() != culprit:
			case round < r.comm.Size():
				aborting.Go(abort)
			default:
				abort()
			}
			for n := 0; err == nil; n++ {
				out, in, _, again := r.put(f, launchOf{
					dtype: weft.BFloat16, chunk: sizes[min(n, len(sizes)-1)], window: n%2 == 1, shift: n % 64 * 16,
				}, 0)
				if again != nil {
					return again
				}
				err = x.Execute(ctx, nil, out, in)
			}
			aborting.Wait()
			if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != culprit || !errors.Is(err, weft.ErrAborted) {
				return fmt.Errorf("round %d: rank %d aborts: %w", round, culprit, err)
			}
			if err := r.comm.SetMask(ctx); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			for n, l := range []launchOf{
				{dtype: weft.BFloat16, chunk: 48}, {dtype: weft.BFloat16, chunk: 16 << 10, window: true},
			} {
				if err := r.launch(ctx, x, l, uint64(n)); err != nil {
					return fmt.Errorf("after round %d: %w", round, err)
				}
			}
			// No rank resets before all have ended.
			if err := r.comm.Operations().VerifySame(ctx, "test", "", nil); err != nil {
				return err
			}
			if err := r.Reset(); err != nil {
				return fmt.Errorf("after round %d: %w", round, err)
			}
		}
		return nil
	}
}

func testAborted(t *testing.T, g *ranktest.GPUs) {
	plans := waiting
	if g.Machine != nil && !emulate.Everything() {
		plans = plans[:2]
	}
	for _, p := range plans {
		t.Run(p.Name, func(t *testing.T) {
			run(t, g, 3, memoryBytes, executor.Options{}, patience, aborts(build(t, p.Build())))
		})
	}
}

func TestAbortedOnEmulatedGPUs(t *testing.T) { testAborted(t, emulated(t, 3, 1)) }

// TestAbortedOnGPUs is the same on real ones.
func TestAbortedOnGPUs(t *testing.T) { testAborted(t, ranktest.Real(t)) }

// TestMaskedOnEmulatedGPUs: a plan is refused while a rank is masked, and runs when it is back.
func TestMaskedOnEmulatedGPUs(t *testing.T) {
	const ranks, out = 3, 1
	f, l := build(t, plantest.TwoPhasePackets(ranks)), launchOf{dtype: weft.BFloat16, chunk: 48}
	var launched, survivors sync.WaitGroup // a rank must not be masked while it still waits
	launched.Add(ranks)
	survivors.Add(ranks - 1)
	g := emulated(t, ranks, 1)
	run(t, g, ranks, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
		p, err := r.Load(ctx, f)
		if err != nil {
			return err
		}
		err = r.launch(ctx, p, l, 1)
		launched.Done()
		launched.Wait()
		if err != nil {
			return err
		}
		if r.comm.Rank() != out {
			err = r.comm.SetMask(ctx, out)
			if err == nil {
				if err := r.launch(ctx, p, l, 1); !errors.Is(err, weft.ErrUnsupported) || !errors.Is(err, weft.ErrMasked) {
					return fmt.Errorf("with a masked rank: %w", err)
				}
			}
			survivors.Done()
		}
		survivors.Wait()
		if err := errors.Join(err, r.comm.SetMask(ctx)); err != nil {
			return err
		}
		return r.launch(ctx, p, l, 2)
	})
}

// TestRoomOnEmulatedGPUs: more blocks than the GPUs hold at once are refused on all ranks, and other plans run.
func TestRoomOnEmulatedGPUs(t *testing.T) {
	const ranks, sms = 2, 16
	wide, narrow := build(t, manyBlocks(ranks, sms+1)), build(t, manyBlocks(ranks, sms))
	g := emulated(t, ranks, 1)
	run(t, g, ranks, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
		if _, err := r.Load(ctx, wide); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("%d blocks on %d multiprocessors: %w", sms+1, sms, err)
		} else if r.comm.Rank() == 0 {
			t.Log(err)
		}
		p, err := r.Load(ctx, narrow)
		if err != nil {
			return err
		}
		return r.launch(ctx, p, launchOf{dtype: weft.BFloat16, chunk: 32}, 1)
	})
}

// manyBlocks is an all-gather of as many blocks as there are chunks.
func manyBlocks(ranks, blocks int) *plan.Plan {
	p := plan.New("many blocks", plan.AllGather(ranks, blocks), plan.Options{Protocol: plan.LL, DoubleScratch: true})
	c := plantest.Ends(p, ranks, p.Memory)
	var inbox []plan.Buffer
	for r := range ranks {
		inbox = append(inbox, p.Rank(r).Scratch(ranks*blocks))
	}
	for r := range ranks {
		rank := p.Rank(r)
		for k := range blocks {
			b, in := rank.Block(k), rank.Input().Chunk(k, 1)
			b.Copy(rank.Output().Chunk(r*blocks+k, 1), in)
			for i := 1; i < ranks; i++ {
				q := (r + i) % ranks
				b.PutPackets(c[r][q], inbox[q].Chunk(r*blocks+k, 1), in)
			}
			for i := 1; i < ranks; i++ {
				q := (r + i) % ranks
				b.UnpackPackets(rank.Output().Chunk(q*blocks+k, 1), inbox[r].Chunk(q*blocks+k, 1))
			}
		}
	}
	return p
}

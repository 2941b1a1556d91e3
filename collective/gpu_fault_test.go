package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// testMask masks a rank and takes it back: the others go on, an average divides by their number, and parts
// of the masked rank are left alone.
func testMask(t *testing.T, g *ranktest.GPUs) {
	const ranks, out = 4, 1
	var survivors sync.WaitGroup
	survivors.Add(ranks - 1)
	everything := func(ctx context.Context, r *gpuRank, roots ...int) error {
		number := 0
		for _, kind := range kindsOnGPUs() {
			for _, d := range []weft.DType{weft.BFloat16, weft.Int8} {
				for _, count := range []int{3, 1500} {
					c := gpuCase{
						kind: kind, dtype: d, count: count, root: roots[number%len(roots)], inPlace: number%4 < 2,
						op: []weft.Op{weft.Avg, weft.Sum, weft.PreMulSum}[number%3],
					}
					if kind == AllReduce && count > 3 {
						c.name = "all-reduce/two-shot"
					}
					if err := r.check(ctx, c); err != nil {
						return fmt.Errorf("call %d, %v: %w", number, &c, err)
					}
					number++
				}
			}
		}
		return nil
	}
	onGPUs(t, g, ranks, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
		mask := func(ranks ...int) error {
			return errors.Join(r.comm.SetMask(ctx, ranks...), r.beside.SetMask(ctx, ranks...))
		}
		// The host's barrier: a rank must not be masked while it still waits.
		if err := errors.Join(everything(ctx, r, 1, 2), r.host.Barrier(ctx, nil)); err != nil {
			return err
		}
		if r.comm.Rank() == out {
			survivors.Wait()
		} else {
			if err := mask(out); err != nil {
				return err
			}
			err := everything(ctx, r, 0, 2, 3)
			survivors.Done()
			if err != nil {
				return fmt.Errorf("rank %d is masked: %w", out, err)
			}
			if err := r.Broadcast(ctx, nil, r.tensorOf(0, weft.Int8, 1), out); !errors.Is(err, weft.ErrMasked) {
				return fmt.Errorf("the root is masked: %w", err)
			}
		}
		if err := mask(); err != nil {
			return err
		}
		r.calls = 1000 // the same on all
		return everything(ctx, r, 0, 1, 2, 3)
	})
}

func TestMaskOnEmulatedGPUs(t *testing.T) { testMask(t, emulatedGPUs(t, 4)) }

// TestMaskOnGPUs is the same on real ones.
func TestMaskOnGPUs(t *testing.T) { testMask(t, ranktest.Real(t)) }

// testAbsent lets a rank not call: the others' error names the operation and that rank, and all go on after
// SetMask.
func testAbsent(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 2
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: []weft.DType{weft.BFloat16}}
	onGPUs(t, g, ranks, o, func(context.Context, *gpuRank) error { return nil }) // compiles the kernels
	kinds := []Collective{Barrier, AllReduce, ReduceScatterV, AllToAllV, Broadcast, Gather}
	if emulate.Everything() {
		kinds = kindsOnGPUs()
	}
	withDeadline(t, g, ranks, time.Second, o, func(ctx context.Context, r *gpuRank) error {
		me := r.comm.Rank()
		for _, kind := range kinds {
			c := gpuCase{kind: kind, dtype: weft.BFloat16, count: 40, root: 1}
			if kind == Broadcast || kind == Scatter {
				c.root = absent
			}
			o, err := r.put(c, r.memory.Pointer())
			if err != nil {
				return err
			}
			if me != absent {
				err = r.Do(ctx, nil, o.call)
				late, ok := errors.AsType[*weft.PeerError](err)
				named := ok && late.Rank == absent && errors.Is(err, weft.ErrTimeout) &&
					strings.Contains(err.Error(), kind.String())
				leaf := (kind == Gather || kind == Reduce) && me != c.root // has nothing to wait for
				if !named && !leaf {
					return fmt.Errorf("%v without rank %d: %w", kind, absent, err)
				}
			}
			if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
				return err
			}
			if err := r.check(ctx, gpuCase{kind: AllGather, dtype: weft.BFloat16, count: 40}); err != nil {
				return fmt.Errorf("after %v: %w", kind, err)
			}
		}
		return nil
	})
}

func TestAbsentRankOnEmulatedGPUs(t *testing.T) { testAbsent(t, emulatedGPUs(t, 3)) }

// TestAbsentRankOnGPUs is the same on real ones.
func TestAbsentRankOnGPUs(t *testing.T) { testAbsent(t, ranktest.Real(t)) }

package collective

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// A trap is an order of calls, or data, that a simpler engine gets wrong.
type trap struct {
	name string
	run  func(ctx context.Context, r *gpuRank) error
}

// checks makes calls one after the other.
func (r *gpuRank) checks(ctx context.Context, cases ...gpuCase) error {
	for i, c := range cases {
		if err := r.check(ctx, c); err != nil {
			return fmt.Errorf("call %d, %v, marks %q: %w", i, &c, c.marks, err)
		}
	}
	return nil
}

var traps = []trap{
	{"data that looks like none", func(ctx context.Context, r *gpuRank) error {
		var all []gpuCase
		for _, d := range []weft.DType{weft.BFloat16, weft.Float64, weft.Int8, weft.Bool} {
			for _, marks := range []string{"ones", "low ones", "zeros"} {
				for _, kind := range []Collective{AllReduce, ReduceScatter, AllGather, AllToAllV, Broadcast} {
					all = append(all, gpuCase{kind: kind, dtype: d, op: weft.Max, count: 37, marks: marks})
				}
				all = append(all, gpuCase{
					kind: AllReduce, dtype: d, op: weft.Sum, count: 37, marks: marks, name: "all-reduce/two-shot",
				})
			}
		}
		return r.checks(ctx, all...)
	}},
	{"kinds of marks in turn", func(ctx context.Context, r *gpuRank) error {
		var all []gpuCase
		for i := range 45 { // each kind of mark in each turn after each other
			d := []weft.DType{weft.BFloat16, weft.Int8, weft.Float64, weft.Int8, weft.BFloat16}[i%5]
			kind := []Collective{AllReduce, AllGather, AllToAllV, ReduceScatterV, Scatter, AllToAll, Reduce}[i%7]
			all = append(all, gpuCase{kind: kind, dtype: d, count: []int{900, 5, 2300}[i%3], root: i % r.comm.Size()})
		}
		return r.checks(ctx, all...)
	}},
	{"grids of one block after many", func(ctx context.Context, r *gpuRank) error {
		var all []gpuCase
		for i, count := range []int{1, 5000, 1, 1, 5000, 5000, 1, 1, 1, 5000, 1, 5000} {
			kind := []Collective{AllReduce, Broadcast, AllGather, AllToAllV}[i%4]
			all = append(all, gpuCase{kind: kind, dtype: weft.BFloat16, count: count},
				gpuCase{kind: AllReduce, dtype: weft.BFloat16, count: count, name: "all-reduce/two-shot"},
				gpuCase{kind: Barrier})
		}
		return r.checks(ctx, all...)
	}},
	{"broadcasts with a slow leaf", func(ctx context.Context, r *gpuRank) error {
		return r.manyRooted(ctx, Broadcast, r.comm.Size()-1)
	}},
	{"gathers with a slow root", func(ctx context.Context, r *gpuRank) error { return r.manyRooted(ctx, Gather, 0) }},
	{"parts of nothing", func(ctx context.Context, r *gpuRank) error {
		var all []gpuCase
		for i := range 24 { // of three ranks, one in turn has nothing
			kind := []Collective{ReduceScatterV, AllGatherV, AllToAllV, AllReduce}[i%4]
			all = append(all, gpuCase{kind: kind, dtype: weft.Int8, count: i, root: i % 3})
		}
		return r.checks(ctx, all...)
	}},
}

// manyRooted enqueues rooted calls, each of data of its own, on a rank slowly, and looks at all of them in
// the end.
func (r *gpuRank) manyRooted(ctx context.Context, kind Collective, slow int) error {
	const calls, step = 40, 4 << 10
	var all []*gpuOperands
	for i := range calls {
		o, err := r.put(gpuCase{kind: kind, dtype: weft.BFloat16, count: 100}, r.memory.Pointer().Add(i*step))
		if err != nil {
			return err
		}
		all = append(all, o)
	}
	stream := weft.StreamOf(r.comm.Device().Stream())
	for _, o := range all {
		if r.comm.Rank() == slow {
			time.Sleep(500 * time.Microsecond)
		}
		if err := r.Do(ctx, stream, o.call); err != nil {
			return err
		}
	}
	if err := r.comm.Wait(ctx, stream); err != nil {
		return err
	}
	for i, o := range all {
		if err := r.verify(ctx, o); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return nil
}

func runTraps(t *testing.T, g *ranktest.GPUs, ranks int, times int) {
	onGPUs(t, g, ranks, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
		for range times {
			for _, trap := range traps {
				if err := trap.run(ctx, r); err != nil {
					return fmt.Errorf("%s: %w", trap.name, err)
				}
			}
		}
		return nil
	})
}

func TestTrapsOnEmulatedGPUs(t *testing.T) {
	times := 1
	if emulate.Everything() {
		times = 4
	}
	runTraps(t, emulatedKernels(t, 3), 3, times)
}

// TestTrapsOnGPUs is the same on real ones.
func TestTrapsOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { runTraps(t, g, ranks, 20) })
	}
}

// TestDisagreementOnEmulatedGPUs: ranks that make different calls wait until the deadline, and go on after
// SetMask.
func TestDisagreementOnEmulatedGPUs(t *testing.T) {
	g := emulatedGPUs(t, 2)
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: []weft.DType{weft.BFloat16}}
	onGPUs(t, g, 2, o, func(context.Context, *gpuRank) error { return nil }) // compiles the kernels
	withDeadline(t, g, 2, time.Second, o, func(ctx context.Context, r *gpuRank) error {
		calls := []gpuCase{
			{kind: AllReduce, dtype: weft.BFloat16, count: 40},
			{kind: AllReduce, dtype: weft.BFloat16, count: 400},
			{kind: Barrier},
		}
		for _, other := range calls[1:] {
			c := calls[0]
			if r.comm.Rank() == 1 {
				c = other
			}
			if err := r.check(ctx, c); !errors.Is(err, weft.ErrTimeout) && !errors.Is(err, weft.ErrAborted) {
				// The shorter of two calls may have all that it waits for.
				if c.count != 40 || other.kind == Barrier || err == nil {
					return fmt.Errorf("%v and %v: %w", &calls[0], &other, err)
				}
			}
			if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
				return err
			}
			if err := r.check(ctx, calls[0]); err != nil {
				return fmt.Errorf("after SetMask: %w", err)
			}
		}
		return nil
	})
}

// TestOverlappingGroupsOnEmulatedGPUs: communicators that share ranks' GPUs do not meet each other.
func TestOverlappingGroupsOnEmulatedGPUs(t *testing.T) {
	g := emulatedGPUs(t, 3)
	of := func(gpus ...int) []*weft.Comm {
		comms, err := ranktest.JoinEach(len(gpus), func(rank int) []weft.Option {
			return append(g.Options(gpus[rank]), weft.WithDeadline(gpuDeadline))
		})
		if err != nil {
			t.Fatal(err)
		}
		return comms
	}
	all, left, right := of(0, 1, 2), of(0, 1), of(1, 2)
	defer func() {
		if err := errors.Join(ranktest.Close(all), ranktest.Close(left), ranktest.Close(right)); err != nil {
			t.Error(err)
		}
	}()
	err := ranktest.Each(all, func(c *weft.Comm) (err error) {
		ctx, m := testContext(t), c.Device().Context()
		memory, err := m.Alloc(64)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, memory.Close()) }()
		var groups []*Group
		defer func() {
			for _, g := range groups {
				err = errors.Join(err, g.Close())
			}
		}()
		comms := []*weft.Comm{c}
		if c.Rank() < 2 {
			comms = append(comms, left[c.Rank()])
		}
		if c.Rank() > 0 {
			comms = append(comms, right[c.Rank()-1])
		}
		for _, c := range comms {
			g, err := New(ctx, c, Options{Staging: gpuStaging, SMs: 2 * c.Size(), DTypes: []weft.DType{weft.Int8}})
			if err != nil {
				return err
			}
			groups = append(groups, g)
		}
		want := make([]byte, len(groups))
		if err := m.Upload(memory.Pointer(), []byte{1, 1, 1}[:len(groups)]); err != nil {
			return err
		}
		for i := range 6 * len(groups) {
			of := i % len(groups)
			x := weft.DeviceTensor(memory.Pointer().Add(of), weft.Int8, 1)
			want[of] = max(want[of], 1) * byte(comms[of].Size())
			if err := groups[of].AllReduce(ctx, nil, x, x, weft.Sum); err != nil {
				return err
			}
		}
		got := make([]byte, len(groups))
		if err := m.Download(got, memory.Pointer()); err != nil {
			return err
		}
		if string(got) != string(want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

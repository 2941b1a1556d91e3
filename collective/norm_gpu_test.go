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
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// onGPU makes the call on memory of the GPU, in a stream or none.
func (c *normCase) onGPU(ctx context.Context, r *gpuRank, live []int) error {
	o := c.lay()
	if o.end > gpuMemory {
		return fmt.Errorf("%d bytes of operands", o.end)
	}
	mem, device := c.content(&o, r.comm.Rank()), r.comm.Device().Context()
	base := r.memory.Pointer()
	if err := device.Upload(base, mem); err != nil {
		return err
	}
	call := c.call(&o, func(at int, d weft.DType, n int) weft.Tensor { return weft.DeviceTensor(base.Add(at), d, n) })
	if err := r.Do(ctx, nil, call); err != nil {
		return err
	}
	if err := device.Download(mem, base); err != nil {
		return err
	}
	return c.differs(mem, c.want(r.comm.Rank(), live))
}

// norms makes calls of all kinds, among others.
func norms(cases []normCase) func(ctx context.Context, r *gpuRank) error {
	return func(ctx context.Context, r *gpuRank) error {
		for i, c := range cases {
			if err := c.onGPU(ctx, r, ranksUpTo(r.comm.Size())); err != nil {
				return fmt.Errorf("call %d, %v: %w", i, &c, err)
			}
			if i%5 == 4 {
				other := gpuCase{kind: []Collective{AllReduce, Broadcast, AllGather}[i%3], dtype: weft.BFloat16, count: 100 * i}
				if err := r.check(ctx, other); err != nil {
					return fmt.Errorf("after call %d, %v: %w", i, &other, err)
				}
			}
		}
		return nil
	}
}

// normStaging are bytes a rank that make calls of some rows take several launches.
const normStaging = 480 << 10

var normAlgorithms = []string{"all-reduce-norm/one-shot", "all-reduce-norm/two-shot"}

// TestAllReduceNormOnEmulatedGPUs compares calls of all kinds with each step alone.
func TestAllReduceNormOnEmulatedGPUs(t *testing.T) {
	sizes, n := []int{3}, 16
	if emulate.Everything() {
		sizes, n = []int{1, 2, 3, 4, 9}, 100
	}
	for _, ranks := range sizes {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, emulatedKernels(t, ranks), ranks, Options{Staging: ranks * normStaging, SMs: 4},
				norms(normCases(uint64(ranks), n, normAlgorithms...)))
		})
	}
}

// TestAllReduceNormOnGPUs is the same on real ones.
func TestAllReduceNormOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{1, 2, 3, 4, 5, 7, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, g, ranks, Options{Staging: ranks * normStaging, SMs: 16},
				norms(normCases(uint64(ranks), 300, normAlgorithms...)))
		})
	}
}

// testNormMask masks a rank and takes it back.
func testNormMask(t *testing.T, g *ranktest.GPUs) {
	const ranks, out = 4, 1
	var survivors sync.WaitGroup
	survivors.Add(ranks - 1)
	onGPUs(t, g, ranks, Options{Staging: ranks * normStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
		calls := func(live ...int) error {
			for i, name := range normAlgorithms {
				for _, tokens := range []int{1, 2, 9} {
					c := normCase{
						tokens: tokens, hidden: 256, dtype: weft.BFloat16, quant: spec.Quant(i), residual: true, name: name,
						residualOut: true, number: tokens,
					}
					if err := c.onGPU(ctx, r, live); err != nil {
						return fmt.Errorf("%v of %v: %w", &c, live, err)
					}
				}
			}
			return nil
		}
		mask := func(ranks ...int) error {
			return errors.Join(r.comm.SetMask(ctx, ranks...), r.beside.SetMask(ctx, ranks...))
		}
		if err := errors.Join(calls(0, 1, 2, 3), r.host.Barrier(ctx, nil)); err != nil {
			return err
		}
		if r.comm.Rank() == out {
			survivors.Wait()
		} else {
			err := mask(out)
			if err == nil {
				err = calls(0, 2, 3)
			}
			survivors.Done()
			if err != nil {
				return err
			}
		}
		if err := mask(); err != nil {
			return err
		}
		return calls(0, 1, 2, 3)
	})
}

func TestAllReduceNormMaskOnEmulatedGPUs(t *testing.T) { testNormMask(t, emulatedKernels(t, 4)) }

// TestAllReduceNormMaskOnGPUs is the same on real ones.
func TestAllReduceNormMaskOnGPUs(t *testing.T) { testNormMask(t, ranktest.Real(t)) }

// testNormGraph replays a graph of two norms and a sum on other operands each time, among other calls.
func testNormGraph(t *testing.T, g *ranktest.GPUs, ranks, times int) {
	const step = 1 << 20
	o := Options{Staging: ranks * normStaging, SMs: 4, DTypes: []weft.DType{weft.BFloat16}}
	onGPUs(t, g, ranks, o, func(ctx context.Context, r *gpuRank) error {
		device := r.comm.Device().Context()
		cases := []normCase{
			{tokens: 5, hidden: 384, dtype: weft.BFloat16, quant: spec.QuantFP32, residual: true, residualOut: true},
			{tokens: 40, hidden: 640, dtype: weft.BFloat16, residual: true, residualOut: true, inPlace: true},
		}
		at := func(i int) cuda.Pointer { return r.memory.Pointer().Add(i * step) }
		var calls []Call
		for i := range cases {
			c := &cases[i]
			c.name = normAlgorithms[i]
			o := c.lay()
			call := c.call(&o, func(p int, d weft.DType, n int) weft.Tensor { return weft.DeviceTensor(at(i).Add(p), d, n) })
			calls = append(calls, call)
		}
		sum := r.tensorOf(2*step, weft.BFloat16, 100)
		enqueue := func(s *weft.Stream) error {
			return errors.Join(r.Do(ctx, s, calls[0]), r.AllReduce(ctx, s, sum, sum, weft.Sum), r.Do(ctx, s, calls[1]))
		}
		refused := r.capture(enqueue, func(*cuda.Stream, *cuda.GraphExec) error { return nil })
		if !errors.Is(refused, weft.ErrUnsupported) {
			return fmt.Errorf("captured before kernels are loaded: %w", refused)
		}
		// What was captured before the refusal was counted, but never runs on any rank.
		if err := norms(normCases(1, 3))(ctx, r); err != nil {
			return err
		}
		return r.capture(enqueue, func(s *cuda.Stream, graph *cuda.GraphExec) error {
			for n := range times {
				mems := make([][]byte, len(cases))
				for i := range cases {
					cases[i].number = 7*n + i
					o := cases[i].lay()
					mems[i] = cases[i].content(&o, r.comm.Rank())
					if err := device.Upload(at(i), mems[i]); err != nil {
						return err
					}
				}
				if err := errors.Join(graph.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s))); err != nil {
					return fmt.Errorf("replay %d: %w", n, err)
				}
				for i := range cases {
					if err := device.Download(mems[i], at(i)); err != nil {
						return err
					}
					if err := cases[i].differs(mems[i], cases[i].want(r.comm.Rank(), ranksUpTo(ranks))); err != nil {
						return fmt.Errorf("replay %d, %v: %w", n, &cases[i], err)
					}
				}
			}
			return nil
		})
	})
}

func TestAllReduceNormGraphOnEmulatedGPUs(t *testing.T) {
	testNormGraph(t, emulatedKernels(t, 3), 3, 4)
}

// TestAllReduceNormGraphOnGPUs is the same on real ones.
func TestAllReduceNormGraphOnGPUs(t *testing.T) { testNormGraph(t, ranktest.Real(t), 4, 300) }

// testNormAbsent lets a rank not call: the others' error names the operation and that rank.
func testNormAbsent(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 2
	o := Options{Staging: ranks * normStaging, SMs: 4}
	small := normCase{tokens: 7, hidden: 128, dtype: weft.BFloat16}
	warm := norms([]normCase{small})
	onGPUs(t, g, ranks, o, warm) // compiles the kernels
	withDeadline(t, g, ranks, 2*time.Second, o, func(ctx context.Context, r *gpuRank) error {
		if err := warm(ctx, r); err != nil {
			return err
		}
		for _, name := range normAlgorithms {
			c := small
			c.name = name
			if r.comm.Rank() != absent {
				err := c.onGPU(ctx, r, ranksUpTo(ranks))
				late, ok := errors.AsType[*weft.PeerError](err)
				if !ok || late.Rank != absent || !errors.Is(err, weft.ErrTimeout) ||
					!strings.Contains(err.Error(), "all-reduce-norm") {
					return fmt.Errorf("%s without rank %d: %w", name, absent, err)
				}
			}
			if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
				return err
			}
			if err := c.onGPU(ctx, r, ranksUpTo(ranks)); err != nil {
				return fmt.Errorf("after %s: %w", name, err)
			}
		}
		return nil
	})
}

func TestAllReduceNormAbsentRankOnEmulatedGPUs(t *testing.T) {
	testNormAbsent(t, emulatedKernels(t, 3))
}

// TestAllReduceNormAbsentRankOnGPUs is the same on real ones.
func TestAllReduceNormAbsentRankOnGPUs(t *testing.T) { testNormAbsent(t, ranktest.Real(t)) }

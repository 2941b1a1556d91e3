package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// putWhole writes a whole number from 0 to 15.
func putWhole(b []byte, d weft.DType, n int) {
	switch d {
	case weft.Float32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(n)))
	case weft.BFloat16:
		binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(float32(n))>>16))
	case weft.Float16:
		if n == 0 {
			binary.LittleEndian.PutUint16(b, 0)
			return
		}
		e := bits.Len(uint(n)) - 1
		binary.LittleEndian.PutUint16(b, uint16((15+e)<<10|n<<(10-e)&0x3FF))
	default:
		b[0] = byte(n)
	}
}

// multicastAlgorithms are those by multicast.
func multicastAlgorithms() (all []Algorithm) {
	for _, a := range GPUAlgorithms() {
		if strings.Contains(a.Name, "multicast") {
			all = append(all, a)
		}
	}
	return all
}

// multicastGPUs are emulated GPUs that have multicast, and are asked for it.
func multicastGPUs(t *testing.T, ranks int) *ranktest.GPUs {
	t.Helper()
	t.Setenv("WEFT_MULTICAST", "1")
	return ranktest.Emulated(t, cudatest.Config{
		Devices: ranks, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1},
	}, emulate.Options{Seed: 1, Tear: true})
}

// summedTypes are those that switches add up.
var summedTypes = []weft.DType{weft.BFloat16, weft.Float16, weft.Float32}

// everyMulticast makes calls by every algorithm, of every count, place and alignment.
func everyMulticast(ctx context.Context, r *largeRank, algorithms []Algorithm) error {
	number := 0
	for _, a := range algorithms {
		types := append([]weft.DType{weft.Int8, weft.Float64}, summedTypes...)
		if a.Collective.Reduces() {
			types = summedTypes
		}
		for _, d := range types {
			for _, count := range []int{0, 1, 2, 7, 33, 257, 4096, 5003} {
				c := gpuCase{
					kind: a.Collective, dtype: d, op: weft.Sum, count: count, root: number % r.comm.Size(), name: a.Name,
					shift: []int{0, 1, 3, 0, 2}[number%5], skew: number / 2 % 2, windows: true,
					inPlace: number%3 == 0 && !strings.HasSuffix(a.Name, "one-shot"),
				}
				if a.Collective.Reduces() {
					c.marks = "whole"
				}
				if err := r.check(ctx, c); err != nil {
					return fmt.Errorf("call %d, %v: %w", number, &c, err)
				}
				// Another kind of mark comes between two of them.
				between := gpuCase{kind: AllReduce, dtype: weft.BFloat16, count: 9}
				if err := r.gpuRank.check(ctx, between); number%5 == 0 && err != nil {
					return fmt.Errorf("after call %d, %v: %w", number, &c, err)
				}
				number++
			}
		}
	}
	return nil
}

func TestMulticastOnEmulatedGPUs(t *testing.T) {
	if n := len(multicastAlgorithms()); n != 6 {
		t.Fatalf("%d algorithms", n)
	}
	for ranks := 2; ranks <= 9; ranks++ { // nine have loops that are not unrolled
		if ranks > 3 && !emulate.Everything() {
			continue
		}
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onLargeRanks(t, multicastGPUs(t, ranks), ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
				return everyMulticast(ctx, r, multicastAlgorithms())
			})
		})
	}
}

// TestMulticastIsChosen: what is exact runs where windows have multicast addresses and it costs least; what is relaxed
// never does unless it is named.
func TestMulticastIsChosen(t *testing.T) {
	onLargeRanks(t, multicastGPUs(t, 2), 2, gpuDeadline, func(ctx context.Context, r *largeRank) error {
		for _, kind := range []Collective{AllGather, Broadcast, AllReduce, ReduceScatter, Reduce} {
			const count = 20 << 10
			c := gpuCase{kind: kind, dtype: weft.Float32, count: count, windows: true, marks: "whole"}
			o, err := r.put(c, r.window.Pointer())
			if err != nil {
				return err
			}
			work, err := r.Start(ctx, nil, o.call)
			if err != nil {
				return err
			}
			name := work.Algorithm()
			err = errors.Join(work.Wait(ctx), work.Close(), r.verify(ctx, o))
			if by := strings.Contains(name, "multicast"); err != nil || by != !kind.Reduces() {
				return fmt.Errorf("%v: %s: %w", kind, name, err)
			}
		}
		return nil
	})
}

// TestMulticastRefused: what a call by multicast needs and does not have is refused in words, with nothing enqueued.
func TestMulticastRefused(t *testing.T) {
	refused := func(ctx context.Context, r *largeRank, c gpuCase, want string) error {
		if err := r.check(ctx, c); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%v: %w, want %q", &c, err, want)
		}
		return nil
	}
	t.Run("not asked", func(t *testing.T) {
		g := emulatedGPUs(t, 2)
		onLargeRanks(t, g, 2, gpuDeadline, func(ctx context.Context, r *largeRank) error {
			for _, a := range multicastAlgorithms() {
				c := gpuCase{kind: a.Collective, dtype: weft.Float32, count: 9, name: a.Name, windows: true}
				if err := refused(ctx, r, c, "WEFT_MULTICAST"); err != nil {
					return err
				}
			}
			return nil
		})
		if n := g.Machine.Calls("cuMulticastCreate"); n != 0 {
			t.Errorf("%d groups were made", n)
		}
	})
	t.Run("asked", func(t *testing.T) {
		onLargeRanks(t, multicastGPUs(t, 2), 2, gpuDeadline, func(ctx context.Context, r *largeRank) error {
			const twoShot, oneShot = "all-reduce/relaxed-multicast", "all-reduce/relaxed-multicast-one-shot"
			in := gpuCase{kind: AllReduce, dtype: weft.Float32, count: 9, name: twoShot, windows: true, marks: "whole"}
			plain, max, wide, inPlace := in, in, in, in
			plain.windows = false
			max.op = weft.Max
			wide.dtype = weft.Float64
			inPlace.name, inPlace.inPlace = oneShot, true
			return errors.Join(refused(ctx, r, plain, "memory of their own"), refused(ctx, r, max, "name another algorithm"),
				refused(ctx, r, wide, "name another algorithm"), refused(ctx, r, inPlace, "name another algorithm"),
				r.check(ctx, in))
		})
	})
}

// TestMulticastMask: with a rank masked nothing goes by multicast, since that reaches it as well, until it is back.
func TestMulticastMask(t *testing.T) {
	const ranks, out = 3, 1
	survived := make(chan struct{}, ranks)
	onLargeRanks(t, multicastGPUs(t, ranks), ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
		mask := func(ranks ...int) error {
			return errors.Join(r.comm.SetMask(ctx, ranks...), r.beside.SetMask(ctx, ranks...))
		}
		c := gpuCase{
			kind: AllGather, dtype: weft.BFloat16, count: 9000, name: "all-gather/multicast", windows: true,
		}
		if err := errors.Join(r.check(ctx, c), r.host.Barrier(ctx, nil)); err != nil {
			return err
		}
		if r.comm.Rank() == out {
			for range ranks - 1 {
				<-survived
			}
		} else {
			err := mask(out)
			if err == nil {
				if err = r.check(ctx, c); errors.Is(err, weft.ErrUnsupported) && strings.Contains(err.Error(), "masked") {
					err = nil
				} else {
					err = fmt.Errorf("rank %d is masked: %w", out, err)
				}
			}
			unnamed := c
			unnamed.name = "all-gather/direct"
			err = errors.Join(err, r.check(ctx, unnamed))
			survived <- struct{}{}
			if err != nil {
				return err
			}
		}
		if err := mask(); err != nil {
			return err
		}
		r.calls = 1000 // the same on all
		return r.check(ctx, c)
	})
}

// TestMulticastAbsentRank: without one rank the others' wait ends with its name, and all go on after SetMask.
func TestMulticastAbsentRank(t *testing.T) {
	const ranks, absent = 3, 2
	g := multicastGPUs(t, ranks)
	of := func(a *Algorithm) gpuCase {
		return gpuCase{
			kind: a.Collective, dtype: weft.BFloat16, op: weft.Sum, count: 700, name: a.Name, root: absent, windows: true,
			marks: "whole",
		}
	}
	load := func(ctx context.Context, r *largeRank) error {
		for _, a := range multicastAlgorithms() {
			if err := r.check(ctx, of(&a)); err != nil {
				return err
			}
		}
		return nil
	}
	onLargeRanks(t, g, ranks, gpuDeadline, load) // compiles the kernels
	onLargeRanks(t, g, ranks, absence(), func(ctx context.Context, r *largeRank) error {
		if err := load(ctx, r); err != nil {
			return err
		}
		for _, a := range multicastAlgorithms() {
			c := of(&a)
			if r.comm.Rank() != absent {
				late, ok := errors.AsType[*weft.PeerError](r.check(ctx, c))
				if !ok || late.Rank != absent || !errors.Is(late, weft.ErrTimeout) {
					return fmt.Errorf("%v without rank %d: %w", &c, absent, late)
				}
			} else {
				r.calls++
			}
			if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
				return err
			}
			if err := r.check(ctx, c); err != nil {
				return fmt.Errorf("%v after SetMask: %w", &c, err)
			}
		}
		return nil
	})
}

// TestMulticastGraph captures all of them in one graph, and replays it among calls.
func TestMulticastGraph(t *testing.T) {
	const ranks = 3
	var cases []gpuCase
	for i, a := range multicastAlgorithms() {
		cases = append(cases, gpuCase{
			kind: a.Collective, dtype: weft.BFloat16, op: weft.Sum, count: 900 + i, root: i % ranks, name: a.Name,
			windows: true, marks: "whole",
		})
	}
	onLargeRanks(t, multicastGPUs(t, ranks), ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
		return r.replay(ctx, cases, 3)
	})
}

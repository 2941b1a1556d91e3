package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// largeAlgorithms are those that are chosen for large operands only, or by their names: the group's other
// tests do not come upon them.
func largeAlgorithms() (all []Algorithm) {
	for _, a := range GPUAlgorithms() {
		_, way, _ := strings.Cut(a.Name, "/")
		if slices.Contains([]string{
			"pull-push", "pull", "few-sm", "direct", "engine", "helpers", "push-push", "relaxed-ring",
		}, way) {
			all = append(all, a)
		}
	}
	return all
}

// A largeRank is a rank that also has a window for operands.
type largeRank struct {
	*gpuRank
	window *weft.Window
}

func onLargeRanks(t *testing.T, g *ranktest.GPUs, ranks int, deadline time.Duration,
	body func(ctx context.Context, r *largeRank) error,
) {
	t.Helper()
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: fewTypes}
	if g.Machine != nil {
		o.SMs = 1 // few blocks have much to do
		if len(g.Contexts) >= ranks {
			o.SMs = 2
		}
	}
	withDeadline(t, g, ranks, deadline, o, func(ctx context.Context, r *gpuRank) (err error) {
		w, err := r.comm.Alloc(ctx, gpuMemory)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		return body(ctx, &largeRank{r, w})
	})
}

// absence is the deadline where a rank does not call. All else has to end before, and the race detector slows it.
func absence() time.Duration {
	if raceEnabled {
		return 3 * time.Second
	}
	return 500 * time.Millisecond
}

// check makes a call by the algorithm that it names.
func (r *largeRank) check(ctx context.Context, c gpuCase) error {
	base := r.memory.Pointer()
	if c.windows {
		base = r.window.Pointer()
	}
	o, err := r.put(c, base)
	if err != nil {
		return err
	}
	work, err := r.Start(ctx, nil, o.call)
	if err != nil {
		return err
	}
	name := work.Algorithm()
	if err := errors.Join(work.Wait(ctx), work.Close()); err != nil {
		return err
	}
	if name != c.name {
		return fmt.Errorf("%s ran", name)
	}
	return r.verify(ctx, o)
}

// load loads what Options.DTypes does not: kernels that must be named.
func (r *largeRank) load(ctx context.Context) error {
	for _, d := range fewTypes[:3] {
		c := gpuCase{kind: AllReduce, dtype: d, op: weft.Max, count: 9, name: "all-reduce/relaxed-ring", windows: true}
		if err := r.check(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// exact says whether a result has the bits of others: a relaxed algorithm rounds often, in another order.
func exact(a *Algorithm, d weft.DType, op weft.Op) bool {
	return !strings.Contains(a.Name, "relaxed") || op == weft.Min || op == weft.Max || !isFloat(d) && op != weft.Avg
}

// takesInPlace says whether an algorithm takes an output that is the input, on ranks whose calls are symmetric.
func takesInPlace(a *Algorithm) bool {
	return a.Collective != AllToAll && a.Collective != Gather && a.Collective != Scatter
}

// allOps are the reductions.
var allOps = []weft.Op{weft.Sum, weft.Prod, weft.Min, weft.Max, weft.Avg, weft.PreMulSum}

// everyLarge makes calls of every large algorithm, of some types, with some reductions, of every count and place.
func everyLarge(ctx context.Context, r *largeRank, types []weft.DType, ops ...weft.Op) error {
	counts := []int{5003, 1, 257, 7, 0, 4096, 33, 12001}
	own := rand.New(rand.NewPCG(1, uint64(r.comm.Rank())))
	number := 0
	for _, a := range largeAlgorithms() {
		if strings.HasSuffix(a.Name, "/helpers") && r.comm.Size()-r.comm.Mask().Len() < 3 {
			continue
		}
		inWindows := !a.Fits(spec.Request{Collective: a.Collective, Ranks: r.comm.Size(), Able: ^spec.Abilities(0)})
		for _, d := range types {
			for i, op := range ops {
				if d == weft.Bool && op >= weft.Avg && a.Collective.Reduces() || !a.Collective.Reduces() && i > 1 ||
					!exact(&a, d, op) {
					continue
				}
				c := gpuCase{
					kind: a.Collective, dtype: d, op: op, count: counts[number%len(counts)], root: number % r.comm.Size(),
					inPlace: number%3 == 0 && takesInPlace(&a), shift: []int{0, 1, 3, 0, 2}[number%5], name: a.Name,
					onDevice: number%2 == 0, windows: inWindows || number%2 == 0,
					skew: number / 3 % 2,
				}
				if r.comm.Masked(c.root) {
					c.root = 0
				}
				if own.IntN(10) == 0 {
					time.Sleep(time.Duration(own.IntN(2000)) * time.Microsecond)
				}
				if err := r.check(ctx, c); err != nil {
					return fmt.Errorf("call %d, %v: %w", number, &c, err)
				}
				// Another kind of mark comes between two of them.
				if err := r.gpuRank.check(ctx, gpuCase{kind: AllGather, dtype: d, count: 9}); number%7 == 0 && err != nil {
					return fmt.Errorf("after call %d, %v: %w", number, &c, err)
				}
				number++
			}
		}
	}
	return nil
}

// TestLargeOnEmulatedGPUs has a half of the few types on two ranks, and the other on three; with WEFT_TEST_ALL=1 all on
// up to nine.
func TestLargeOnEmulatedGPUs(t *testing.T) {
	for ranks := 2; ranks <= 9; ranks++ { // nine have loops that are not unrolled
		if ranks > 3 && !emulate.Everything() {
			continue
		}
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onLargeRanks(t, emulatedKernels(t, ranks), ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
				types := fewTypes
				switch {
				case !emulate.Everything():
					types = types[2*(ranks-2):][:2]
				case ranks > 4:
					types = types[:2]
				}
				return everyLarge(ctx, r, types, allOps...)
			})
		})
	}
}

// TestLargeOnGPUs is the same on real ones, which ranks share, in all types. With -short it is so on four ranks, and in
// few types on two, three and eight: most of the time goes to compile kernels for so many ranks.
func TestLargeOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 3, 4, 5, 7, 8} {
		types := allTypes
		if testing.Short() && ranks != 4 {
			if ranks == 5 || ranks == 7 {
				continue
			}
			types = fewTypes
		}
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onLargeRanks(t, g, ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
				return everyLarge(ctx, r, types, allOps...)
			})
		})
	}
}

// testLines moves by lines, whose stores are never torn.
func testLines(t *testing.T, g *ranktest.GPUs, ranks int) {
	onLargeRanks(t, g, ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
		number := 0
		for _, d := range []weft.DType{weft.Int8, weft.BFloat16} {
			for _, count := range []int{1, 257, 7, 0, 60, 120, 24003 / r.comm.Size()} {
				for _, kind := range []Collective{AllGather, AllToAll} {
					c := gpuCase{
						kind: kind, dtype: d, count: count, name: kind.String() + "/lines", shift: number % 4,
						inPlace: number%3 == 0, marks: []string{"", "ones", "zeros"}[number%3],
					}
					if err := r.check(ctx, c); err != nil {
						return fmt.Errorf("call %d, %v: %w", number, &c, err)
					}
					// Slots of another kind come next.
					c = gpuCase{kind: AllReduce, dtype: fewTypes[number%4], count: 100 + number, op: weft.Max}
					if err := r.gpuRank.check(ctx, c); err != nil {
						return fmt.Errorf("after call %d: %w", number, err)
					}
					number++
				}
			}
		}
		return nil
	})
}

func TestLinesOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	g := ranktest.Emulated(t, cudatest.Config{}, emulate.Options{Seed: 1})
	testLines(t, g, 3)
	t.Run("refused", func(t *testing.T) { // between different GPUs
		onLargeRanks(t, emulatedGPUs(t, 2), 2, gpuDeadline, func(ctx context.Context, r *largeRank) error {
			c := gpuCase{kind: AllGather, dtype: weft.Int8, count: 9, name: "all-gather/lines"}
			if err := r.check(ctx, c); !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("lines between GPUs: %w", err)
			}
			return nil
		})
	})
}

// TestLinesOnGPUs is the same on real ones, where all ranks share one.
func TestLinesOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	if len(g.Contexts) > 1 {
		t.Setenv("WEFT_LL128", "1")
	}
	for _, ranks := range []int{2, 3, 4, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { testLines(t, g, ranks) })
	}
}

// testLargeMask masks a rank, and takes it back.
func testLargeMask(t *testing.T, g *ranktest.GPUs) {
	const ranks, out = 4, 1
	ops := []weft.Op{weft.Avg, weft.PreMulSum, weft.Max}
	survived := make(chan struct{}, ranks)
	ready := make(chan struct{}) // the rank to mask is out of the barrier, too
	onLargeRanks(t, g, ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
		mask := func(ranks ...int) error {
			return errors.Join(r.comm.SetMask(ctx, ranks...), r.beside.SetMask(ctx, ranks...))
		}
		types := []weft.DType{weft.BFloat16}
		if err := errors.Join(everyLarge(ctx, r, types, ops...), r.host.Barrier(ctx, nil)); err != nil {
			return err
		}
		if r.comm.Rank() == out {
			close(ready)
			for range ranks - 1 {
				<-survived
			}
		} else {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
			err := mask(out)
			if err == nil {
				err = everyLarge(ctx, r, types, ops...)
			}
			survived <- struct{}{}
			if err != nil {
				return fmt.Errorf("rank %d is masked: %w", out, err)
			}
		}
		if err := mask(); err != nil {
			return err
		}
		r.calls = 1000 // the same on all
		return everyLarge(ctx, r, types, ops...)
	})
}

func TestLargeMaskOnEmulatedGPUs(t *testing.T) { testLargeMask(t, emulatedKernels(t, 4)) }

// TestLargeMaskOnGPUs is the same on real ones.
func TestLargeMaskOnGPUs(t *testing.T) { testLargeMask(t, ranktest.Real(t)) }

// TestMaskedLastRankOnEmulatedGPUs: where the last rank is masked, no rank reads behind its input. The GPU's memory
// ends there.
func TestMaskedLastRankOnEmulatedGPUs(t *testing.T) {
	const ranks, out, count = 4, 3, 600
	survived := make(chan struct{}, ranks)
	ready := make(chan struct{}) // the last rank has all that is made together
	onLargeRanks(t, emulatedGPUs(t, ranks), ranks, gpuDeadline, func(ctx context.Context, r *largeRank) (err error) {
		device := r.comm.Device().Context()
		memory, err := device.Alloc(2 * count)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, memory.Close()) }()
		one, three := []byte{0x80, 0x3F}, []byte{0x40, 0x40} // as bf16
		if err := device.Upload(memory.Pointer(), bytes.Repeat(one, count)); err != nil {
			return err
		}
		in := weft.DeviceTensor(memory.Pointer(), weft.BFloat16, count)
		call := func(c Call, want []byte) error {
			c.In, c.Out = in, weft.DeviceTensor(r.base(), weft.BFloat16, count)
			got := make([]byte, 2*count)
			if err := r.Do(ctx, nil, c); err != nil {
				return fmt.Errorf("%s: %w", c.Algorithm, err)
			}
			if err := r.read(got, r.base()); err != nil {
				return err
			}
			if c.Collective.HasOutput(r.comm.Rank(), c.Root) && !bytes.Equal(got, bytes.Repeat(want, count)) {
				return fmt.Errorf("%s: %x, want %x", c.Algorithm, got[:8], want)
			}
			return nil
		}
		if r.comm.Rank() == out {
			close(ready)
			for range ranks - 1 {
				<-survived
			}
		} else {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
			err := errors.Join(r.comm.SetMask(ctx, out), r.beside.SetMask(ctx, out))
			if err == nil {
				err = errors.Join(
					call(Call{Collective: AllReduce, Algorithm: "all-reduce/two-shot"}, three),
					call(Call{Collective: Broadcast, Algorithm: "broadcast/helpers"}, one),
					call(Call{Collective: Reduce, Algorithm: "reduce/helpers"}, three))
			}
			survived <- struct{}{}
			if err != nil {
				return err
			}
		}
		return errors.Join(r.comm.SetMask(ctx), r.beside.SetMask(ctx))
	})
}

// testLargeAbsent lets a rank not call: the others' errors name it, and all go on after SetMask.
func testLargeAbsent(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 2
	onLargeRanks(t, g, ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error { return r.load(ctx) })
	onLargeRanks(t, g, ranks, absence(), func(ctx context.Context, r *largeRank) error {
		if err := r.load(ctx); err != nil { // it is compiled
			return err
		}
		for i, a := range largeAlgorithms() {
			if i%3 != 0 && !emulate.Everything() {
				continue
			}
			c := gpuCase{
				kind: a.Collective, dtype: weft.BFloat16, op: weft.Max, count: 700, name: a.Name, root: absent, windows: true,
			}
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

func TestLargeAbsentRankOnEmulatedGPUs(t *testing.T) { testLargeAbsent(t, emulatedKernels(t, 3)) }

// TestLargeAbsentRankOnGPUs is the same on real ones.
func TestLargeAbsentRankOnGPUs(t *testing.T) { testLargeAbsent(t, ranktest.Real(t)) }

// testLargeGraph captures all large algorithms in one graph, and replays it among calls.
func testLargeGraph(t *testing.T, g *ranktest.GPUs, times int) {
	const ranks = 3
	var cases []gpuCase
	for i, a := range largeAlgorithms() {
		cases = append(cases, gpuCase{
			kind: a.Collective, dtype: fewTypes[i%3], count: 900 + i, root: i % ranks, name: a.Name, windows: true,
			op: weft.Max,
		})
	}
	onLargeRanks(t, g, ranks, gpuDeadline, func(ctx context.Context, r *largeRank) error {
		return r.replay(ctx, cases, times)
	})
}

// replay captures cases in one graph after they have run once, since a capture cannot load kernels, and replays it
// among calls. Each case is of operands of less than 128 KiB.
func (r *largeRank) replay(ctx context.Context, cases []gpuCase, times int) error {
	var calls []*gpuOperands
	put := func() error {
		calls = calls[:0]
		for i, c := range cases {
			o, err := r.put(c, r.window.Pointer().Add(i*128<<10))
			if err != nil {
				return err
			}
			calls = append(calls, o)
		}
		return r.beside.Operations().VerifySame(ctx, "test", "operands", nil) // peers write into them
	}
	enqueue := func(s *weft.Stream) error {
		for _, o := range calls {
			if err := r.Do(ctx, s, o.call); err != nil {
				return fmt.Errorf("%v: %w", &o.gpuCase, err)
			}
		}
		return nil
	}
	if err := errors.Join(put(), enqueue(nil)); err != nil {
		return err
	}
	return r.capture(enqueue, func(s *cuda.Stream, g *cuda.GraphExec) error {
		for replay := range times {
			if err := put(); err != nil {
				return err
			}
			if err := errors.Join(g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s))); err != nil {
				return fmt.Errorf("replay %d: %w", replay, err)
			}
			for i, o := range calls {
				if err := r.verify(ctx, o); err != nil {
					return fmt.Errorf("replay %d, operation %d, %v: %w", replay, i, &o.gpuCase, err)
				}
			}
			c := gpuCase{kind: AllReduce, dtype: weft.BFloat16, count: 100 + replay}
			if err := r.gpuRank.check(ctx, c); err != nil {
				return fmt.Errorf("after replay %d: %w", replay, err)
			}
		}
		return nil
	})
}

func TestLargeGraphOnEmulatedGPUs(t *testing.T) { testLargeGraph(t, emulatedKernels(t, 3), 3) }

// TestLargeGraphOnGPUs is the same on real ones.
func TestLargeGraphOnGPUs(t *testing.T) { testLargeGraph(t, ranktest.Real(t), 200) }

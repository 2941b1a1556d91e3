package collective

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// inProcess runs f as each of n ranks that are goroutines.
func inProcess(t *testing.T, n int, f func(h *timing.Host) error) {
	t.Helper()
	err := ranktest.Run(n, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		h, err := timing.NewHost(ctx, c, collective.Options{})
		if err != nil {
			return err
		}
		if err := f(h); err != nil {
			return err
		}
		return h.Meet()
	})
	if err != nil {
		t.Error(err)
	}
}

// kinds are those that can be measured on GPUs or on the host.
func kinds(gpu bool) []Kind {
	return slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return !k.On(gpu) })
}

// sweepOf is a small sweep, which names the kind.
func sweepOf(k Kind) Sweep {
	return Sweep{
		Kind: k.Name, Bytes: []int64{1, 100, 5000}, DType: "fp32", Op: "sum", Heap: true,
		Effort: timing.Effort{Iterations: 4, Warmup: 2},
	}
}

func TestEveryKindOnTheHost(t *testing.T) {
	for _, k := range kinds(false) {
		for _, inPlace := range []bool{false, true} {
			if inPlace && k.Collective == collective.PointToPoint {
				continue
			}
			for _, ranks := range []int{1, 3, 4} {
				t.Run(fmt.Sprintf("%s, %d ranks, in place %v", k.Name, ranks, inPlace), func(t *testing.T) {
					inProcess(t, ranks, func(h *timing.Host) error {
						s := sweepOf(k)
						s.InPlace, s.Heap = inPlace, !inPlace
						series, err := Measure(h, s)
						if err != nil {
							return err
						}
						for i, one := range series {
							c, bytes := one.Collective, s.sizes()[i]
							if one.Problem != "" || len(one.Durations()) != 4 || one.Op != k.Name ||
								k.Collective != collective.PointToPoint &&
									!strings.HasPrefix(c.Algorithm, k.Collective.String()+"/") {
								return fmt.Errorf("%+v, %+v", one, c)
							}
							if c.Bytes > max(bytes, int64(4*ranks)) || c.Bytes%4 != 0 || (c.Bytes > 0) != (bytes > 0) {
								return fmt.Errorf("%d bytes for %d", c.Bytes, bytes)
							}
						}
						return nil
					})
				})
			}
		}
	}
}

func TestEveryTypeAndReduction(t *testing.T) {
	inProcess(t, 3, func(h *timing.Host) error {
		for _, dtype := range DTypes() {
			for _, op := range Ops() {
				s := sweepOf(Kinds[0])
				s.DType, s.Op, s.InPlace, s.Effort.Iterations = dtype, op, op == "max", 2
				if dtype == "bool" || op == "premulsum" { // see TestOtherReductionsOnEmulatedGPUs
					continue
				}
				series, err := Measure(h, s)
				if err != nil {
					return fmt.Errorf("%s of %s: %w", op, dtype, err)
				}
				for _, one := range series {
					if one.Problem != "" {
						return fmt.Errorf("%s of %s: %+v", op, dtype, one)
					}
				}
			}
		}
		return nil
	})
}

// A call that does nothing must not pass with what lies there from the time before.
func TestChecksCatchErrors(t *testing.T) {
	for _, k := range kinds(false) {
		if k.Collective == collective.Barrier {
			continue
		}
		for _, inPlace := range []bool{false, k.Collective != collective.PointToPoint} {
			inProcess(t, 2, func(h *timing.Host) error {
				s := sweepOf(k)
				s.InPlace = inPlace
				x, err := s.newExchange(64, h.Comm.Rank(), 2, false)
				if err != nil {
					return err
				}
				o, free, err := x.onHost(h, true)
				if err != nil {
					return err
				}
				defer free()
				problem := func() (text string, wrong int64, err error) {
					all, err := h.Time(timing.Effort{Iterations: 1}, timing.Rounds{
						Operations: []timing.Operation{o}, Checked: func(int, int) bool { return true },
					})
					if err != nil {
						return "", 0, err
					}
					return all[0].Problem, all[0].Wrong, nil
				}
				if p, n, err := problem(); err != nil || p != "" || n != 0 {
					return fmt.Errorf("%s: before anything is wrong: %w %s %d", k.Name, err, p, n)
				}
				o.Run = func(bool) error { return nil }
				want := " of the result of " + k.Name + " of 64 B are wrong"
				if x.out == nil || inPlace && x.me == root && !k.outParts && !k.Collective.Reduces() {
					want = "" // it has no output, or has had it from the beginning
				}
				p, n, err := problem()
				if err != nil || want == "" && (p != "" || n != 0) ||
					want != "" && (n < 1 || n > 16 || p != measure.Count(int(n), "element")+want) {
					return fmt.Errorf("%s that does nothing: %w %q %d", k.Name, err, p, n)
				}
				return nil
			})
		}
	}
}

// Content repeats with no period that would hide parts in the wrong place.
func TestContent(t *testing.T) {
	for _, k := range Kinds {
		if k.Collective == collective.Barrier {
			continue
		}
		s := sweepOf(k)
		for _, ranks := range []int{2, 3, 8} {
			seen := map[string]bool{}
			for me := range ranks {
				x, err := s.newExchange(int64(4*ranks*1000), me, ranks, false)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range []*content{x.in, x.out} {
					if c == nil {
						continue
					}
					whole := make([]byte, c.bytes())
					c.write(whole, 0)
					if c == x.in {
						seen[string(whole)] = true
					}
					middle := make([]byte, c.bytes()/2)
					c.write(middle, c.bytes()/3)
					if !c.holds(whole, 0) || !c.holds(middle, c.bytes()/3) ||
						!slices.Equal(middle, whole[c.bytes()/3:][:len(middle)]) {
						t.Errorf("%s: pieces differ", k.Name)
					}
					if middle[len(middle)-1] ^= 1; c.holds(middle, c.bytes()/3) {
						t.Errorf("%s: a wrong byte is not seen", k.Name)
					}
					whole[0], whole[3], whole[9] = whole[0]^1, whole[3]^1, whole[9]^1
					if n := c.wrong(whole, 0, 4, false); n != 2 {
						t.Errorf("%s: %d elements are wrong, want 2", k.Name, n)
					}
					clear(whole)
					if n := c.wrong(whole, 0, 4, true); n != 0 {
						t.Errorf("%s: %d elements are wrong, and zeros may be there", k.Name, n)
					}
				}
			}
			if len(seen) != ranks && len(seen) != 1 {
				t.Errorf("%s: %d ranks bring %d different inputs", k.Name, ranks, len(seen))
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	for dtype, want := range map[weft.DType][]byte{
		weft.Float8E4M3: {0, 0x38, 0x40, 0x44, 0x48, 0x50}, // 0, 1, 2, 3, 4, 8
		weft.Float8E5M2: {0, 0x3c, 0x40, 0x42, 0x44, 0x48},
		weft.Bool:       {0, 1, 1, 1, 1, 1},
	} {
		var got []byte
		for _, v := range []float64{0, 1, 2, 3, 4, 8} {
			got, _ = appendNumber(got, dtype, v)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%v: %s", dtype, d)
		}
	}
	for _, ranks := range []int{1, 2, 3, 7, 72} {
		for _, op := range []weft.Op{weft.Sum, weft.Prod, weft.Min, weft.Max, weft.Avg, weft.PreMulSum} {
			r, different := reduction{weft.Float8E5M2, op, ranks, false}, map[float64]bool{}
			for i := range 2 * r.period() {
				v := r.result(i)
				if v != r.result(i+r.period()) || v > 16 || v != math.Trunc(v) {
					t.Fatalf("%v of %d ranks: element %d is %g", op, ranks, i, v)
				}
				different[v] = true
			}
			if len(different) < 2 && op != weft.Prod && (op != weft.Min || ranks < 5) {
				t.Errorf("%v of %d ranks is the same everywhere", op, ranks)
			}
		}
	}
}

// Sizes, bus bandwidth and bytes are those of nccl-tests.
func TestSizes(t *testing.T) {
	for name, want := range map[string][4]float64{ // bytes of 1003 and of 1 for 4 ranks in fp32, bus, wire
		"allreduce": {1000, 4, 1.5, 1500}, "broadcast": {1000, 4, 1, 750}, "reduce": {1000, 4, 1, 750},
		"allgather": {992, 16, 0.75, 744}, "reducescatter": {992, 16, 0.75, 744}, "alltoall": {992, 16, 0.75, 744},
		"gather": {992, 16, 0.75, 186}, "scatter": {992, 16, 0.75, 186}, "barrier": {0, 0, 1, 0},
		"sendrecv": {1000, 4, 1, 1000},
	} {
		var got [4]float64
		for i, n := range []int64{1003, 1} {
			s := sweepOf(*Named(name))
			x, err := s.newExchange(n, 1, 4, false)
			if err != nil {
				t.Fatal(err)
			}
			if got[i] = float64(x.size); i == 0 {
				got[2], got[3] = x.bus(4), x.bytes().Wire
			}
		}
		if got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if len(Kinds) != 10 || Named("nothing") != nil {
		t.Error("kinds are missing")
	}
}

// The default comes first, as the packages behind have it; unmeasured ones are missing.
func TestChoices(t *testing.T) {
	for want, got := range map[string][]string{
		"sum prod min max avg premulsum": Ops(),
		"bf16 fp16 fp32 fp64 e4m3 e5m2 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool": DTypes(),
	} {
		if d := cmp.Diff(strings.Fields(want), got); d != "" {
			t.Error(d)
		}
	}
	for _, k := range Kinds {
		for _, name := range slices.Concat(k.Algorithms(false), k.Algorithms(true)) {
			if !strings.HasPrefix(name, k.Collective.String()+"/") {
				t.Errorf("%s is no algorithm of %s", name, k.Name)
			}
		}
		if !k.On(true) {
			t.Errorf("GPUs have no %s", k.Name)
		}
	}
}

// emulatedGPUs are GPUs on which the kernels themselves run.
func emulatedGPUs(t *testing.T, n int) GPUs {
	t.Helper()
	on := ranktest.Emulated(t, cudatest.Config{
		Devices:    n,
		Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 4, cuda.L2CacheSize: 4096, cuda.Multicast: 1},
	}, emulate.Options{Limit: time.Minute, Seed: 1})
	return GPUs{Staging: 192 << 10, GPUs: timing.GPUs{
		Contexts: on.Contexts, Operations: 2, Replays: 1, Samples: 2, Deadline: 20 * time.Second, Cache: on.Kernels,
		Patience: 1, // launches run where they are enqueued, so nothing would open the gate
	}}
}

// A sort of measurement on GPUs.
type sort struct {
	gpus, ranks     int
	graph, loopback bool
	inPlace         bool
}

func TestEveryKindOnEmulatedGPUs(t *testing.T) {
	sorts := []sort{{gpus: 1, ranks: 3, graph: true, loopback: true}, {gpus: 2, ranks: 2, graph: true, inPlace: true}}
	if !testing.Short() && emulate.Everything() {
		sorts = append(sorts, sort{gpus: 2, ranks: 2}, sort{gpus: 1, ranks: 2, graph: true},
			sort{gpus: 1, ranks: 2, loopback: true})
	}
	for _, o := range sorts {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			g := emulatedGPUs(t, o.gpus)
			for i, k := range kinds(true) {
				// TestEveryAlgorithmOnEmulatedGPUs has the others in a loopback, by each of their algorithms.
				if o.loopback && len(k.Algorithms(true)) > 0 && !testing.Short() && !emulate.Everything() {
					continue
				}
				if testing.Short() && o.loopback != (i%2 == 0) {
					continue
				}
				g.check(t, sweepOf(k), o)
			}
		})
	}
}

// everyAlgorithm measures each with operands in windows, on ranks of a loopback and on others.
// everyAlgorithm measures those by multicast, or the others.
func (g GPUs) everyAlgorithm(t *testing.T, multicast bool, sorts ...sort) {
	t.Helper()
	for _, k := range kinds(true) {
		for _, name := range k.Algorithms(true) {
			if strings.Contains(name, "multicast") != multicast {
				continue
			}
			s := sweepOf(k)
			s.Algorithm, s.Heap = name, false
			for _, o := range sorts {
				g.check(t, s, o)
			}
		}
	}
}

func TestEveryAlgorithmOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	sorts := []sort{{gpus: 1, ranks: 3, graph: true, loopback: true}}
	if emulate.Everything() {
		sorts = append(sorts, sort{gpus: 3, ranks: 3, graph: true}) // some algorithms are for more than two
	}
	t.Setenv("WEFT_LL128", "1")
	emulatedGPUs(t, 3).everyAlgorithm(t, false, sorts...)
	t.Setenv("WEFT_MULTICAST", "1")
	emulatedGPUs(t, 2).everyAlgorithm(t, true, sort{gpus: 2, ranks: 2, graph: true})
}

func TestEveryAlgorithmOnGPUs(t *testing.T) {
	contexts := ranktest.Real(t).Contexts
	g := GPUs{GPUs: timing.GPUs{Contexts: contexts, Operations: 150, Samples: 20}}
	g.everyAlgorithm(t, false, sort{gpus: 1, ranks: 4, graph: true, loopback: true})
}

func TestEveryKindOnGPUs(t *testing.T) {
	contexts := ranktest.Real(t).Contexts
	g := GPUs{GPUs: timing.GPUs{Contexts: contexts, Operations: 150, Samples: 20}}
	for _, graph := range []bool{true, false} {
		for _, k := range kinds(true) {
			s := sweepOf(k)
			s.Bytes = append(s.Bytes, 100_000, 20_000_000)
			g.check(t, s, sort{gpus: 1, ranks: 4, graph: graph, loopback: true})
			g.check(t, s, sort{gpus: len(contexts), ranks: len(contexts), graph: graph, inPlace: graph})
		}
	}
}

// check measures a sweep, and looks at its rows.
func (g GPUs) check(t *testing.T, s Sweep, o sort) {
	t.Helper()
	messages := Named(s.Kind).Collective == collective.PointToPoint
	g.Ranks, g.Graph, g.Loopback = o.ranks, o.graph, o.loopback
	o.inPlace = o.inPlace && !messages
	s.InPlace, s.Effort = o.inPlace, timing.Effort{}
	var rows []measure.Record
	err := g.Measure(t.Context(), s, func(r measure.Record) error { rows = append(rows, r); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(s.sizes()) {
		t.Fatalf("%s: %d rows", s.Kind, len(rows))
	}
	for _, r := range rows {
		t.Logf("%s %+v: %s of %d bytes: %.2f us, an empty launch %.2f, dependent %.2f", s.Kind, o, r.Algorithm, r.Bytes,
			r.P50, r.Empty, r.Dependent)
		if !r.Verified || r.Ranks != o.ranks || r.GPUs != min(o.gpus, o.ranks) || r.Loopback != o.loopback ||
			r.Engine != "gpu" || r.P50 <= 0 || r.UsP99 != r.P99 || r.Empty <= 0 || (r.Issue > 0) == o.graph ||
			!messages && !strings.HasPrefix(r.Algorithm, Named(s.Kind).Collective.String()+"/") ||
			s.Algorithm != "" && r.Algorithm != s.Algorithm {
			t.Errorf("%s by %q: %+v %+v %+v", s.Kind, s.Algorithm, r, r.Collective, r.GPU)
		}
	}
}

func TestOtherReductionsOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	g := emulatedGPUs(t, 2)
	g.Ranks = 2
	for _, of := range []struct{ dtype, op string }{{"bf16", "premulsum"}, {"int32", "premulsum"}} {
		s := sweepOf(Kinds[0])
		s.DType, s.Op, s.Bytes, s.Effort = of.dtype, of.op, []int64{1000}, timing.Effort{}
		if err := s.Validate(true); err != nil {
			t.Fatal(err)
		}
		if err := g.Measure(t.Context(), s, func(r measure.Record) error {
			if !r.Verified || r.Reduction != of.op {
				t.Errorf("%v: %+v", of, r)
			}
			return nil
		}); err != nil {
			t.Errorf("%v: %v", of, err)
		}
	}
	s := sweepOf(Kinds[0])
	if s.DType, s.Op = "bool", "avg"; s.Validate(true) == nil {
		t.Error("an average of bools")
	}
}

// An engine that sends a peer's part to the wrong place is noticed on GPUs, too.
func TestGPUChecksCatchErrors(t *testing.T) {
	g := emulatedGPUs(t, 2)
	g.Ranks, g.Graph = 2, true
	kind := Named("alltoall")
	run := kind.run
	defer func() { kind.run = run }()
	kind.run = func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
		return g.Do(ctx, s, collective.Call{
			Collective: spec.AllGather, Out: c.Out,
			In: weft.DeviceTensor(c.In.Pointer(), c.In.DType, c.In.Elems()/2),
		})
	}
	err := g.Measure(t.Context(), sweepOf(*kind), func(r measure.Record) error {
		if r.Verified || r.Wrong == 0 {
			t.Errorf("%d bytes of an all-gather pass as an all-to-all, with %d elements wrong", r.Bytes, r.Wrong)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

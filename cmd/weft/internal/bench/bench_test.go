package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/simd"
)

func TestMain(m *testing.M) {
	if os.Getenv(taskEnv) != "" { // a rank of TestRunWithProcesses
		if err := Serve(context.Background(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("WEFT_TUNING", "none") // not what this machine's user has
	os.Exit(m.Run())
}

func TestFMAIsExact(t *testing.T) {
	float := rapid.Custom(func(t *rapid.T) float32 {
		// Exponents close together, where the sum of product and addend rounds awkwardly.
		return float32(math.Ldexp(float64(rapid.Int32Range(-1<<24, 1<<24).Draw(t, "m")),
			rapid.IntRange(-40, 10).Draw(t, "e")))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := float.Draw(t, "a"), float.Draw(t, "b"), float.Draw(t, "c")
		exact := new(big.Float).SetPrec(400).Mul(big.NewFloat(float64(a)), new(big.Float).SetPrec(400).SetFloat64(float64(b)))
		exact.Add(exact, new(big.Float).SetPrec(400).SetFloat64(float64(c)))
		want, _ := exact.Float32()
		if got := fma(a, b, c); got != want {
			t.Fatalf("fma(%v, %v, %v) = %v, want %v", a, b, c, got, want)
		}
	})
}

func TestPatternQuantisesToItself(t *testing.T) {
	const hidden = 512
	p, err := newPattern(hidden, weft.BFloat16, weft.Float8E4M3)
	if err != nil {
		t.Fatal(err)
	}
	for token := range 64 {
		row := p.row(weft.BFloat16, 3, token, 0)
		codes, scales := make([]byte, hidden), make([]float32, hidden/128)
		in := weft.TensorAt(bytes.Clone(row), weft.BFloat16, hidden)
		simd.QuantizeE4M3(simd.BF16, weft.TensorAt(codes, weft.Uint8, hidden).Data, weft.TensorOf(scales).Data,
			in.Data, hidden, simd.ScaleF32)
		if !bytes.Equal(codes, p.row(weft.Float8E4M3, 3, token, 0)) {
			t.Fatalf("token %d: other codes", token)
		}
		exponent := p.scales(3, token)
		for i, s := range scales {
			if s != pow2(exponent(i)) {
				t.Fatalf("token %d: scale %d is %v, want 2^%d", token, i, s, exponent(i))
			}
		}
	}
}

// inProcess runs f as each of n ranks that are goroutines.
func inProcess(t *testing.T, n int, f func(r *rank) error) {
	t.Helper()
	boots, err := bootstrap.NewInProcess(n)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = func() (err error) {
				r := &rank{ctx: ctx, out: json.NewEncoder(io.Discard)}
				if r.comm, err = weft.Join(ctx, weft.WithBootstrap(boots[i])); err != nil {
					return err
				}
				defer r.comm.Close()
				if r.group, err = collective.New(ctx, r.comm, collective.Options{}); err != nil {
					return err
				}
				if err := f(r); err != nil {
					return err
				}
				return r.barrier()
			}()
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

func shapeOf(change func(*EP)) EP {
	e := EP{
		Tokens: 5, Hidden: 512, TopK: 3, Experts: 8, DType: "bf16", Layout: "expert-major",
		Reduction: "exact", Weighting: "weighted", Counts: "host", Routing: routing.Uniform, Seed: 3, Batches: 1,
		Effort: Effort{Iterations: 6},
	}
	if change != nil {
		change(&e)
	}
	return e
}

var shapes = map[string]EP{
	"default":      shapeOf(nil),
	"partial":      shapeOf(func(e *EP) { e.Reduction = "partial" }),
	"by selection": shapeOf(func(e *EP) { e.Reduction, e.DType = "partial-by-selection", "fp32" }),
	"plain":        shapeOf(func(e *EP) { e.Weighting = "plain" }),
	"packed fp8": shapeOf(func(e *EP) {
		e.Layout, e.DType, e.Routing = "expert-packed", "fp8", routing.Zipf
	}),
	"packed fp8, column-major": shapeOf(func(e *EP) {
		e.Layout, e.DType, e.Scales = "expert-packed", "fp8", "column-major"
	}),
	"ue8m0, column-major": shapeOf(func(e *EP) { e.DType, e.Scales, e.Hidden = "fp8-ue8m0", "column-major", 1024 }),
	"ue8m0":               shapeOf(func(e *EP) { e.DType, e.Counts = "fp8-ue8m0", "device" }),
	"rank-major fp32": shapeOf(func(e *EP) {
		e.Layout, e.Reduction, e.Weighting, e.DType = "rank-major", "partial", "plain", "fp32"
	}),
	"token-major fp16": shapeOf(func(e *EP) {
		e.Layout, e.Reduction, e.Weighting, e.DType = "token-major", "partial", "plain", "fp16"
	}),
	"fresh":        shapeOf(func(e *EP) { e.Fresh, e.Batches = true, 3 }),
	"phases, heap": shapeOf(func(e *EP) { e.Phases, e.Heap, e.Routing = true, true, routing.Hot }),
	"cached":       shapeOf(func(e *EP) { e.Cached, e.InPlace = true, true }),
}

func TestEP(t *testing.T) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			inProcess(t, 2, func(r *rank) error {
				series, err := r.measureEP(shape)
				if err != nil {
					return err
				}
				if want := 3 - b2i(shape.Cached); len(series) != want {
					return fmt.Errorf("%d series, want %d", len(series), want)
				}
				for _, s := range series {
					if s.Problem != "" {
						return fmt.Errorf("%s: %s", s.Op, s.Problem)
					}
					if n := len(unpack(s.Times)); n != shape.Iterations {
						return fmt.Errorf("%s: %d timings, want %d", s.Op, n, shape.Iterations)
					}
				}
				return nil
			})
		})
	}
}

// A check that cannot fail proves nothing: each of these lies to it in one respect.
func TestEPChecksCatchErrors(t *testing.T) {
	lies := map[string]struct {
		lie  func(m *epRank)
		want string
	}{
		"a row was changed": {func(m *epRank) { m.x.Data.Raw()[7] ^= 1 }, "dispatch: row"},
		"weights differ": {func(m *epRank) {
			m.sets[0].weights[0] *= 2
			m.sets[0].weight = weft.TensorOf(append([]float32{.5}, m.sets[0].weights[1:]...), 5, 3)
		}, "combine: the sum"},
		"routing differs": {func(m *epRank) {
			ids := m.sets[0].ids[m.comm.Rank()]
			sent := append([]int32(nil), ids...)
			m.sets[0].topk = weft.TensorOf(sent, 5, 3)
			ids[0], ids[1] = ids[1], ids[0]
			ids[0] = (ids[0] + 3) % 8
		}, "dispatch:"},
	}
	for name, tc := range lies {
		t.Run(name, func(t *testing.T) {
			inProcess(t, 1, func(r *rank) error {
				m := &epRank{rank: r, expected: expected{cfg: shapeOf(nil)}}
				m.restart(2)
				if err := m.setUp(); err != nil {
					return err
				}
				defer m.handle.Close()
				if err := m.iterate(0, true); err != nil || m.problem != "" {
					return fmt.Errorf("before the lie: %v %s", err, m.problem)
				}
				tc.lie(m)
				if err := m.iterate(0, true); err != nil {
					return err
				}
				if !strings.HasPrefix(m.problem, tc.want) {
					return fmt.Errorf("problem %q, want %q", m.problem, tc.want)
				}
				return nil
			})
		})
	}
}

func TestEveryRoutingIsPoisonedBeforeItIsChecked(t *testing.T) {
	m := &epRank{sets: make([]batch, 4)}
	for _, n := range []int{6, 20, 1000} {
		run := 0
		for i := range n {
			if m.checked(i, n) {
				run++
			} else {
				if run > 0 && run < min(len(m.sets)+1, n/3) {
					t.Errorf("n=%d: only %d checked in a row up to %d", n, run, i)
				}
				run = 0
			}
		}
		if run == 0 {
			t.Errorf("n=%d: the last iteration is not checked", n)
		}
	}
}

func TestAllReduce(t *testing.T) {
	for _, tc := range []struct{ dtype, op string }{
		{"fp32", "sum"},
		{"bf16", "max"},
		{"fp16", "min"},
		{"int32", "prod"},
		{"fp64", "avg"},
		{"uint8", "sum"},
		{"int64", "max"},
		{"int16", "sum"},
	} {
		inProcess(t, 3, func(r *rank) error {
			series, err := r.measureAllReduce(AllReduce{
				Bytes: []int64{8, 4096}, DType: tc.dtype, Op: tc.op, Heap: tc.op == "sum", InPlace: tc.op == "max",
				Effort: Effort{Iterations: 4, Warmup: 2},
			})
			if err != nil {
				return err
			}
			for _, s := range series {
				if s.Problem != "" || len(unpack(s.Times)) != 4 {
					return fmt.Errorf("%s %s: %+v", tc.dtype, tc.op, s)
				}
			}
			return nil
		})
	}
	if _, _, err := summands(weft.Float8E4M3, weft.Sum, 8, 0, 1); err == nil {
		t.Error("fp8 messages must be refused")
	}
}

func TestAllReduceChecksCatchErrors(t *testing.T) {
	nothing := func() error { return nil }
	for _, inPlace := range []bool{false, true} {
		inProcess(t, 2, func(r *rank) error {
			m, free, err := r.newAllReducer(AllReduce{Heap: true, InPlace: inPlace}, 64, weft.Float32, weft.Sum)
			if err != nil {
				return err
			}
			defer free()
			if err := m.checked(m.reduce); err != nil || m.problem != "" {
				return fmt.Errorf("before anything is wrong: %v %s", err, m.problem)
			}
			// What lies there from the time before must not pass.
			if err := m.checked(nothing); err != nil || m.problem != "the result of 64 B is wrong" {
				return fmt.Errorf("a reduction that does nothing: %v %q", err, m.problem)
			}
			return nil
		})
	}
}

func TestValidate(t *testing.T) {
	ep := func(change func(*EP)) Task { e := shapeOf(change); return Task{EP: &e} }
	reduce := func(change func(*AllReduce)) Task {
		a := AllReduce{
			Bytes: []int64{8, 64}, DType: "fp32", Op: "sum", Algorithm: Algorithms()[0],
			Effort: Effort{Time: time.Second},
		}
		if change != nil {
			change(&a)
		}
		return Task{AllReduce: &a}
	}
	join := func(n int) Task { return Task{Join: &Join{Rounds: n}} }
	longest := ep(func(e *EP) { e.Effort = Effort{Iterations: mostIterations, Time: mostTime} })
	good := []Task{ep(nil), reduce(nil), join(1), join(mostIterations), longest}
	for i, task := range good {
		if err := task.Validate(2); err != nil {
			t.Errorf("good task %d: %v", i, err)
		}
		if task.Validate(0) == nil || task.Validate(weft.MaxRanks+1) == nil {
			t.Errorf("good task %d: any number of ranks will do", i)
		}
	}
	for want, task := range map[string]Task{
		"empty":                {},
		"warmup -5":            ep(func(e *EP) { e.Warmup = -5 }),
		"warmup 100001":        ep(func(e *EP) { e.Warmup = mostIterations + 1 }),
		"iters -1":             ep(func(e *EP) { e.Iterations = -1 }),
		"iters 100001":         reduce(func(a *AllReduce) { a.Iterations = mostIterations + 1 }),
		"iters 0: want 1":      join(0),
		"time -1s":             reduce(func(a *AllReduce) { a.Time = -time.Second }),
		"time 2h":              ep(func(e *EP) { e.Time = 2 * time.Hour }),
		"batches 0":            ep(func(e *EP) { e.Batches = 0 }),
		"tokens 0":             ep(func(e *EP) { e.Tokens = 0 }),
		"routing":              ep(func(e *EP) { e.Routing = "cold" }),
		"multiple of the rank": ep(func(e *EP) { e.Experts = 7 }),
		"opaque":               ep(func(e *EP) { e.DType = "opaque" }),
		`algorithm "nope"`:     reduce(func(a *AllReduce) { a.Algorithm = "nope" }),
		"e4m3":                 reduce(func(a *AllReduce) { a.DType = "e4m3" }),
		`dtype "x"`:            reduce(func(a *AllReduce) { a.DType = "x" }),
		`reduction "x"`:        reduce(func(a *AllReduce) { a.Op = "x" }),
		"of 7 bytes":           reduce(func(a *AllReduce) { a.Bytes = []int64{8, 7} }),
		"of 0 bytes":           reduce(func(a *AllReduce) { a.Bytes = []int64{0} }),
	} {
		if err := task.Validate(2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a word about %q", err, want)
		}
	}
	if d := reduce(nil).time(); d != 2*time.Second {
		t.Errorf("two sizes for a second each take %v", d)
	}
}

// The default comes first, as the packages behind have it; what cannot be measured is missing.
func TestChoices(t *testing.T) {
	for want, got := range map[string][]string{
		"expert-major expert-packed rank-major token-major": Layouts(),
		"exact partial partial-by-selection":                Reductions(),
		"weighted plain":                                    Weightings(),
		"host device":                                       CountModes(),
		"bf16 fp16 fp32 fp8 fp8-ue8m0":                      Payloads(),
		"row-major column-major":                            ScaleOrders(),
		"sum prod min max avg":                              Ops(),
		"bf16 fp16 fp32 fp64 int8 int16 int32 int64 uint8 uint16 uint32 uint64": DTypes(),
	} {
		if d := cmp.Diff(strings.Fields(want), got); d != "" {
			t.Error(d)
		}
	}
	for _, name := range Algorithms() {
		if !strings.HasPrefix(name, "all-reduce/") {
			t.Errorf("%s is no algorithm of AllReduce", name)
		}
	}
	if len(Algorithms()) < 2 {
		t.Error("there is no choice of algorithms")
	}
}

func TestIterationsAgree(t *testing.T) {
	got := make([]int, 2)
	inProcess(t, 2, func(r *rank) (err error) {
		// Rank 1 is ten times slower and decides.
		d := time.Duration(1+9*r.comm.Rank()) * 10 * time.Microsecond
		got[r.comm.Rank()], err = r.iterations(Effort{Time: 10 * time.Millisecond}, 1, d)
		return err
	})
	if got[0] != 100 || got[1] != 100 {
		t.Errorf("%v, want 100 twice", got)
	}
}

func TestRunWithProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	h := Host{Args: []string{"-test.run=^$"}, Timeout: time.Minute}
	shape := shapeOf(nil)
	for _, task := range []Task{
		{EP: &shape},
		{AllReduce: &AllReduce{
			Bytes: []int64{8}, DType: "fp32", Op: "sum",
			Effort: Effort{Iterations: 30},
		}},
		{Join: &Join{Rounds: 3}},
	} {
		byRank, err := h.Run(2, task, nil)
		if err != nil {
			t.Fatal(err)
		}
		records, problems, err := Merge(measure.Record{Engine: "host"}, byRank, 1e10)
		if err != nil || len(problems) > 0 {
			t.Fatalf("%v %v", err, problems)
		}
		for _, r := range records {
			if !r.Verified || r.Ranks != 2 || r.P50 <= 0 || r.P99 < r.P50 {
				t.Errorf("%+v", r)
			}
		}
	}
	bad := shape
	bad.Experts = 7
	if _, err := h.Run(2, Task{EP: &bad}, nil); err == nil {
		t.Error("a task that ranks refuse must fail")
	}
}

func TestMerge(t *testing.T) {
	pack := func(us ...int) []byte {
		n := newTimings(len(us))
		for _, v := range us {
			n.add(time.Duration(v) * time.Microsecond)
		}
		return n.pack()
	}
	records, problems, err := Merge(measure.Record{Tokens: 1}, [][]Series{
		{{Op: "dispatch", Times: pack(1, 2, 3), Wire: 10, Logical: 20, DeepEP: 40, Moved: 100}},
		{{Op: "dispatch", Times: pack(2, 1, 5), Wire: 30, Logical: 20, DeepEP: 40, Moved: 100, Problem: "row 3"}},
	}, 1e8)
	if err != nil {
		t.Fatal(err)
	}
	r := records[0]
	if r.P50 != 2 || r.Max != 5 || r.WireBytes != 20 || r.DeepEPBytes != 40 || r.MovedBytes != 200 ||
		r.Floor != 2 || r.FloorRatio != 1 || r.Slowest != 1 || r.Verified {
		t.Errorf("%+v", r)
	}
	if len(problems) != 1 || problems[0] != "rank 1: row 3" {
		t.Errorf("%v", problems)
	}
	if _, _, err := Merge(measure.Record{}, [][]Series{{{Op: "a"}}, {{Op: "b"}}}, 0); err == nil {
		t.Error("ranks that measured different things must be refused")
	}
}

func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("copies a lot")
	}
	if speed := NewCopier(2).Measure(); speed < 1e8 || speed > 1e13 {
		t.Errorf("%v bytes a second", speed)
	}
	if d := PingPong(); d < 0 || d > time.Second {
		t.Errorf("%v", d)
	}
}

// Scales that stand in another order, or at another place of the same row, are not taken for the
// right ones.
func TestScalesOutOfOrderAreNoticed(t *testing.T) {
	const rows, hidden = 6, 8 * ep.ScaleBlock
	for _, payload := range []ep.Payload{ep.FP8, ep.FP8UE8M0} {
		t.Run(payload.String(), func(t *testing.T) {
			m := expected{cfg: EP{Hidden: hidden}, spec: ep.Spec{Payload: payload, ScaleOrder: ep.ColumnMajorScales}}
			var err error
			if m.rows, err = newPattern(hidden, weft.BFloat16); err != nil {
				t.Fatal(err)
			}
			size := m.scaleBytes() / (hidden / ep.ScaleBlock) // of a scale
			words := m.scaleBytes() / 4
			all := make([]byte, 2*rows*m.scaleBytes()) // of two experts
			for row := range 2 * rows {
				exponent := m.rows.scales(0, row)
				for i := range hidden / ep.ScaleBlock {
					word, in := i*size/4, i*size%4
					at := row/rows*rows*words*4 + (word*rows+row%rows)*4 + in
					if payload == ep.FP8 {
						binary.LittleEndian.PutUint32(all[at:], math.Float32bits(pow2(exponent(i))))
					} else {
						all[at] = byte(127 + exponent(i))
					}
				}
			}
			tensor := weft.Tensor{Shape: []int{2, words, rows}}
			for row := range 2 * rows {
				right := m.rows.scales(0, row)
				scales := m.scalesOf(all, tensor, row)
				if i := m.wrongScale(scales, right); i >= 0 {
					t.Errorf("row %d: scale %d", row, i)
				}
				slices.Reverse(scales)
				if m.wrongScale(scales, right) < 0 {
					t.Errorf("row %d: backwards", row)
				}
			}
			m.spec.ScaleOrder = ep.RowMajorScales
			wrong := 0
			for row := range 2 * rows {
				if m.wrongScale(m.scalesOf(all, tensor, row), m.rows.scales(0, row)) >= 0 {
					wrong++
				}
			}
			if wrong < 2*rows-1 {
				t.Errorf("in the other order only %d rows are wrong", wrong)
			}
		})
	}
}

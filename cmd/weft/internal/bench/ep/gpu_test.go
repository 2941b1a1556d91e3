package ep

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/closer"
	"github.com/weftgo/weft/internal/ranktest"
)

// emulatedGPUs are GPUs on which the kernels themselves run, and a cache that is shared by a test.
func emulatedGPUs(t *testing.T, n int) (*cudatest.Machine, GPUs) {
	t.Helper()
	on := ranktest.Emulated(t, cudatest.Config{
		Devices:    n,
		Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 16, cuda.L2CacheSize: 4096},
	}, emulate.Options{Limit: time.Minute, Seed: 1})
	return on.Machine, GPUs{GPUs: timing.GPUs{
		Contexts: on.Contexts, Operations: 2, Replays: 1, Samples: 2, Deadline: 20 * time.Second, Cache: on.Kernels,
		Patience: 1, // launches run where they are enqueued, so nothing would open the gate
	}}
}

// few says that emulated GPUs measure few shapes.
func few() bool { return testing.Short() || !emulate.Everything() }

// small is a shape that emulated GPUs manage.
func small(change func(e *Shape)) Shape {
	e := Shape{
		Tokens: 3, Hidden: 128, TopK: 2, Experts: 4, DType: "bf16", Layout: "rank-major",
		Reduction: "partial", Weighting: "plain",
		Counts: "device", Routing: "uniform", Seed: 1, Batches: 1,
	}
	if change != nil {
		change(&e)
	}
	return e
}

func exactFP8(e *Shape) {
	e.Layout, e.Reduction, e.Weighting, e.DType = "expert-major", "exact", "weighted", "fp8"
}

func columnMajor(e *Shape) {
	exactFP8(e)
	e.Hidden, e.Scales = 384, "column-major"
}

// throughput are the shapes of which many tokens are dispatched at a time.
func throughput() []Shape {
	given := func(e *Shape) { e.DType, e.Hidden, e.Given = "fp8", 384, true }
	return []Shape{
		small(func(e *Shape) { e.Layout, e.SMs = "token-major", 3 }),
		small(func(e *Shape) { given(e); e.Layout = "token-major" }),
		small(func(e *Shape) { e.Layout, e.Reduction, e.Weighting = "expert-packed", "exact", "weighted" }),
		small(func(e *Shape) { given(e); e.Layout, e.Weighting, e.Scales = "expert-packed", "plain", "column-major" }),
	}
}

func TestMeasureGradientsOnEmulatedGPUs(t *testing.T) {
	shapes := throughput()
	if few() {
		shapes = shapes[1:3]
	}
	_, g := emulatedGPUs(t, 2)
	g.Phases, g.Gradients = true, true
	rows := map[string][]GPURow{}
	if err := g.Measure(t.Context(), shapes,
		func(r GPURow) error { rows[r.Op] = append(rows[r.Op], r); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(rows) != g.Rows() {
		t.Errorf("%d operations, want %d", len(rows), g.Rows())
	}
	for op, all := range rows {
		if len(all) != len(shapes) {
			t.Errorf("%s: %d rows", op, len(all))
		}
		for _, r := range all {
			if !r.Verified || r.P50 <= 0 || r.Kernel <= 0 || r.Eager <= 0 || r.P99Replays < 1 ||
				r.SMsUsed < 1 || r.Quantize != "" {
				t.Errorf("%s %s: %v, %+v", r.Contract, op, r.Problems, r)
			}
			if (r.WireBytes > 0) != (op != "prepare") || strings.Contains(r.Contract, "from") {
				t.Errorf("%s %s: %d bytes", r.Contract, op, r.WireBytes)
			}
		}
	}
}

func TestMeasureOnEmulatedGPUs(t *testing.T) {
	shapes := []Shape{
		small(nil),
		small(func(e *Shape) { e.Capacity = 300 }), // rows go straight to where they are received
		small(func(e *Shape) { e.Layout, e.Weighting = "expert-major", "weighted" }),
		small(exactFP8),
		small(columnMajor),
		small(func(e *Shape) { columnMajor(e); e.DType, e.Hidden = "fp8-ue8m0", 1024 }),
		small(func(e *Shape) { columnMajor(e); e.Layout = "expert-packed" }),
		small(func(e *Shape) { e.Layout = "token-major" }), // direct mode, both ways
		small(func(e *Shape) { e.Layout, e.Reduction, e.Weighting = "expert-packed", "exact", "weighted" }),
	}
	if few() {
		shapes = []Shape{shapes[0], small(columnMajor)}
	}
	for _, tc := range []struct{ gpus, ranks int }{{2, 2}, {1, 2}, {1, 1}} {
		t.Run(fmt.Sprintf("%d ranks on %d", tc.ranks, tc.gpus), func(t *testing.T) {
			_, g := emulatedGPUs(t, tc.gpus)
			g.Ranks, g.Phases = tc.ranks, tc.gpus == 2
			var rows []GPURow
			err := g.Measure(t.Context(), shapes, func(r GPURow) error { rows = append(rows, r); return nil })
			if err != nil {
				t.Fatal(err)
			}
			each := 2
			if g.Phases {
				each = 4
			}
			if len(rows) != each*len(shapes) {
				t.Fatalf("%d rows", len(rows))
			}
			for _, r := range rows {
				if !r.Verified || len(r.Problems) > 0 {
					t.Errorf("%s %s: %v", r.Contract, r.Op, r.Problems)
				}
				if (r.Scales == "column-major") != strings.Contains(r.Contract, " column-major from bf16") ||
					(r.Scales == "") != (r.DType == "bf16") {
					t.Errorf("%s: %q", r.Contract, r.Scales)
				}
				if r.Ranks != tc.ranks || r.GPUs != tc.gpus || r.Replays != 1 || r.Operations != 2 ||
					r.Engine != "gpu" || r.Capacity < 3 {
					t.Errorf("%+v", r)
				}
				if r.P50 <= 0 || r.Kernel <= 0 || r.Eager <= 0 || r.Issue <= 0 || r.Issue > r.Eager ||
					r.Max < r.P50 || r.KernelP99 < r.Kernel || r.Ungated <= 0 || r.UngatedMax < r.Ungated ||
					r.P99 <= 0 || r.P99Replays < 1 || r.EagerP99 < r.Eager {
					t.Errorf("times: %+v", r)
				}
				if r.SMsUsed < 1 || r.SMsUsed > 16 {
					t.Errorf("%s %s on %d SMs of 16", r.Contract, r.Op, r.SMsUsed)
				}
				if (r.WireBytes > 0) != (tc.ranks > 1 && r.Op != "prepare") {
					t.Errorf("%s %s: %d bytes on the wire", r.Contract, r.Op, r.WireBytes)
				}
			}
		})
	}
}

// solitary runs f as the only rank, with a shape set up.
func solitary(t *testing.T, g GPUs, shape Shape, f func(ctx context.Context, m *gpuRank) error) {
	t.Helper()
	var err error
	if g.GPUs, err = g.WithDefaults(); err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context(), func(ctx context.Context, of *timing.GPU) error {
		var c closer.Stack
		m := g.rank(of)
		m.cfg = shape
		err := m.setUp(ctx, &c)
		if err == nil {
			err = f(ctx, m)
		}
		return errors.Join(err, c.Close())
	}); err != nil {
		t.Error(err)
	}
}

// Each of these lies to the checks in one respect: they must all notice.
func TestGPUChecksCatchErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("there is one rank, and other tests have its goroutines")
	}
	_, g := emulatedGPUs(t, 1)
	g.Ranks = 1
	lies := map[string]struct {
		lie  func(m *gpuRank, dispatch, combine, prepare *timing.Operation) *timing.Operation
		want string
	}{
		"rows of before": {func(m *gpuRank, dispatch, _, _ *timing.Operation) *timing.Operation {
			dispatch.Renew = func(bool) error { m.salt++; return nil } // the tokens' rows stay as they were
			return dispatch
		}, "dispatch: row"},
		"another token": {func(m *gpuRank, dispatch, _, _ *timing.Operation) *timing.Operation {
			m.wantRows[0].token ^= 1
			return dispatch
		}, "dispatch: row"},
		"a row that nobody sent": {func(m *gpuRank, dispatch, _, _ *timing.Operation) *timing.Operation {
			m.wantRows = append(m.wantRows, m.wantRows[0])
			return dispatch
		}, "dispatch: 6 rows reported, 7 sent"},
		"sums that nobody made": {func(_ *gpuRank, _, combine, _ *timing.Operation) *timing.Operation {
			combine.Run = func(bool) error { return nil }
			return combine
		}, "combine: the sum of token"},
		"sums of before": {func(m *gpuRank, _, combine, _ *timing.Operation) *timing.Operation {
			combine.Renew = func(bool) error { m.salt++; return nil }
			return combine
		}, "combine: the sum of token"},
		"weights": {func(m *gpuRank, _, combine, _ *timing.Operation) *timing.Operation {
			m.batch.weights[0] *= 2
			return combine
		}, "combine: the sum of token"},
		"counts": {func(m *gpuRank, _, _, prepare *timing.Operation) *timing.Operation {
			prepare.Renew = nil
			m.batch.ids[0][0] = -1
			return prepare
		}, "prepare: it counts"},
	}
	for name, tc := range lies {
		t.Run(name, func(t *testing.T) {
			solitary(t, g, small(exactFP8), func(ctx context.Context, m *gpuRank) error {
				dispatch, combine, prepare := m.dispatches(ctx, timing.Bytes{}), m.combines(ctx, timing.Bytes{}), m.prepares(ctx)
				for _, o := range []timing.Operation{dispatch, combine, prepare} {
					if row, err := m.Measure(ctx, o); err != nil || !row.Verified {
						return fmt.Errorf("before the lie: %s: %w %v", o.Name, err, row.Problems)
					}
				}
				row, err := m.Measure(ctx, *tc.lie(m, &dispatch, &combine, &prepare))
				if err != nil {
					return err
				}
				if row.Verified || len(row.Problems) != 1 || !strings.HasPrefix(row.Problems[0], tc.want) {
					t.Errorf("%v", row.Problems)
				}
				return nil
			})
		})
	}
}

func TestGradientChecksCatchErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("there is one rank, and other tests have its goroutines")
	}
	_, g := emulatedGPUs(t, 1)
	g.Ranks, g.Gradients, g.Brief = 1, true, true
	shapes := throughput()
	byRank, byExpert := shapes[0], shapes[2]
	lies := map[string]struct {
		shape Shape
		lie   func(m *gpuRank, combine, dispatch *timing.Operation) *timing.Operation
		want  string
	}{
		"rows that nobody made": {byRank, func(_ *gpuRank, combine, _ *timing.Operation) *timing.Operation {
			combine.Run = func(bool) error { return nil }
			return combine
		}, "combine-backward: the gradient of row"},
		"another token's": {byRank, func(m *gpuRank, combine, _ *timing.Operation) *timing.Operation {
			m.wantRows[0].token ^= 1
			return combine
		}, "combine-backward: the gradient of row"},
		"weights": {byExpert, func(m *gpuRank, combine, _ *timing.Operation) *timing.Operation {
			m.batch.all[0][0] *= 2
			return combine
		}, "combine-backward: the gradient of row"},
		"products of other rows": {byExpert, func(m *gpuRank, combine, _ *timing.Operation) *timing.Operation {
			renew := combine.Renew
			combine.Renew = func(bool) error { return errors.Join(renew(true), m.spoil(m.y)) }
			return combine
		}, "combine-backward: the gradient of weight"},
		"numbers of before": {byRank, func(m *gpuRank, _, dispatch *timing.Operation) *timing.Operation {
			dispatch.Renew = func(bool) error { return m.writeExperts() }
			return dispatch
		}, "dispatch-backward: the gradient of weight"},
		"sums that nobody made": {byExpert, func(_ *gpuRank, _, dispatch *timing.Operation) *timing.Operation {
			dispatch.Run = func(bool) error { return nil }
			return dispatch
		}, "dispatch-backward: the sum of token"},
	}
	for name, tc := range lies {
		t.Run(name, func(t *testing.T) {
			solitary(t, g, tc.shape, func(ctx context.Context, m *gpuRank) error {
				combine, dispatch := m.combinesBackward(ctx), m.dispatchesBackward(ctx, timing.Bytes{})
				for _, o := range []timing.Operation{combine, dispatch} {
					if row, err := m.Measure(ctx, o); err != nil || !row.Verified {
						return fmt.Errorf("before the lie: %s: %w %v", o.Name, err, row.Problems)
					}
				}
				row, err := m.Measure(ctx, *tc.lie(m, &combine, &dispatch))
				if err != nil {
					return err
				}
				if row.Verified || len(row.Problems) != 1 || !strings.HasPrefix(row.Problems[0], tc.want) {
					t.Errorf("%v", row.Problems)
				}
				return nil
			})
		})
	}
}

// A rank that fails ends the others, and is the one that is blamed.
func TestGPUsEndTogether(t *testing.T) {
	machine, g := emulatedGPUs(t, 2)
	g.Ranks, g.Deadline = 2, 5*time.Second
	enough := errors.New("enough")
	err := g.Measure(t.Context(), []Shape{small(nil)}, func(GPURow) error { return enough })
	if !errors.Is(err, enough) || !strings.Contains(err.Error(), "rank 0: ") {
		t.Errorf("%v", err)
	}
	machine.Fail("cuEventCreate", 1, cuda.ErrOutOfMemory)
	if err := g.Measure(t.Context(), []Shape{small(nil)}, nil); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := g.Measure(ctx, []Shape{small(nil)}, nil); err == nil {
		t.Error("it went on")
	}
}

func TestGPURefusals(t *testing.T) {
	for name, change := range map[string]func(*Shape){
		"tokens 0":     func(e *Shape) { e.Tokens = 0 },
		"-1 SMs":       func(e *Shape) { e.SMs = -1 },
		"partial":      func(e *Shape) { e.Reduction = "exact" },
		"multiple":     func(e *Shape) { e.DType, e.Hidden = "fp8", 64 },
		"none of":      func(e *Shape) { e.Layout = "sideways" },
		"up to 32768 ": func(e *Shape) { e.Capacity = 1 << 20 },
	} {
		if _, err := small(change).DeviceSpec(2); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (GPUs{}).Measure(t.Context(), nil, nil); err == nil {
		t.Error("no GPUs")
	}
}

func TestGPURowsShowOutliers(t *testing.T) {
	ms := time.Millisecond
	for _, tc := range []struct {
		times []time.Duration
		shown bool
	}{
		{[]time.Duration{1 * ms, 2 * ms, 5 * ms}, false},
		{[]time.Duration{1 * ms, 1 * ms, 6 * ms}, true},
		{[]time.Duration{1 * ms, 7 * ms, 7 * ms}, true},
	} {
		s, err := measure.Summarize([][]time.Duration{tc.times})
		if err != nil {
			t.Fatal(err)
		}
		r := GPURow{Operations: 100, WireBytes: 1e6}
		r.setGraph(s, [][]float64{{1, 2, 3}})
		if (r.Timed != nil) != tc.shown || r.P50 != measure.Micros(s.P50)/100 || r.GBps != 1e3/r.P50 {
			t.Errorf("%v: %+v", tc.times, r)
		}
		r.setTail(s)
		if r.P99 != r.Max || r.P99Replays != len(tc.times) {
			t.Errorf("%v: %+v", tc.times, r)
		}
		r.setUngated(s, [][]float64{{4}})
		if (r.UngatedTimed != nil) != tc.shown || r.Ungated != r.P50 || r.UngatedMax != r.Max {
			t.Errorf("%v: %+v", tc.times, r)
		}
		r.SetLink(2 * r.GBps)
		if r.Ratio != 0.5 {
			t.Errorf("%+v", r)
		}
	}
}

func TestGPUBytes(t *testing.T) {
	m := expected{ranks: 2, cfg: small(exactFP8)}
	var err error
	if m.spec, err = m.cfg.DeviceSpec(2); err != nil {
		t.Fatal(err)
	}
	m.payload = weft.Float8E4M3
	// Of rank 0 both experts of the first token are rank 1's, of the second one is; rank 1 keeps
	// all.
	b := &batch{ids: [][]int32{{2, 3, 0, 2}, {2, 3, 3, -1}}}
	there, back := m.moves(b)
	if there != bytesOf(2*132/2, 5*132/2, 7*132/2) || back != bytesOf(3*256/2, 5*256/2, 7*256/2) {
		t.Errorf("%+v %+v", there, back)
	}
	m.spec.Reduction = ep.Partial
	if _, back = m.moves(b); back.Wire != 2*256/2 {
		t.Errorf("%+v", back)
	}
}

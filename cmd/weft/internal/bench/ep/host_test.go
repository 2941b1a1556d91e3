package ep

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/simd"
)

func TestMain(m *testing.M) {
	os.Setenv("WEFT_TUNING", "none") // not what this machine's user has
	os.Exit(m.Run())
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

func shapeOf(change func(*Shape)) Shape {
	e := Shape{
		Tokens: 5, Hidden: 512, TopK: 3, Experts: 8, DType: "bf16", Layout: "expert-major",
		Reduction: "exact", Weighting: "weighted", Counts: "host", Routing: routing.Uniform, Seed: 3, Batches: 1,
		Effort: timing.Effort{Iterations: 6},
	}
	if change != nil {
		change(&e)
	}
	return e
}

var shapes = map[string]Shape{
	"default":      shapeOf(nil),
	"partial":      shapeOf(func(e *Shape) { e.Reduction = "partial" }),
	"by selection": shapeOf(func(e *Shape) { e.Reduction, e.DType = "partial-by-selection", "fp32" }),
	"plain":        shapeOf(func(e *Shape) { e.Weighting = "plain" }),
	"packed fp8": shapeOf(func(e *Shape) {
		e.Layout, e.DType, e.Routing = "expert-packed", "fp8", routing.Zipf
	}),
	"packed fp8, column-major": shapeOf(func(e *Shape) {
		e.Layout, e.DType, e.Scales = "expert-packed", "fp8", "column-major"
	}),
	"ue8m0, column-major": shapeOf(func(e *Shape) { e.DType, e.Scales, e.Hidden = "fp8-ue8m0", "column-major", 1024 }),
	"ue8m0":               shapeOf(func(e *Shape) { e.DType, e.Counts = "fp8-ue8m0", "device" }),
	"rank-major fp32": shapeOf(func(e *Shape) {
		e.Layout, e.Reduction, e.Weighting, e.DType = "rank-major", "partial", "plain", "fp32"
	}),
	"token-major fp16": shapeOf(func(e *Shape) {
		e.Layout, e.Reduction, e.Weighting, e.DType = "token-major", "partial", "plain", "fp16"
	}),
	"fresh":        shapeOf(func(e *Shape) { e.Fresh, e.Batches = true, 3 }),
	"phases, heap": shapeOf(func(e *Shape) { e.Phases, e.Heap, e.Routing = true, true, routing.Hot }),
	"cached":       shapeOf(func(e *Shape) { e.Cached, e.InPlace = true, true }),
}

func TestEP(t *testing.T) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			inProcess(t, 2, func(h *timing.Host) error {
				series, err := Measure(h, shape)
				if err != nil {
					return err
				}
				want := 3
				if shape.Cached {
					want = 2
				}
				if len(series) != want {
					return fmt.Errorf("%d series, want %d", len(series), want)
				}
				for _, s := range series {
					if s.Problem != "" {
						return fmt.Errorf("%s: %s", s.Op, s.Problem)
					}
					if n := len(s.Durations()); n != shape.Iterations {
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
		lie  func(m *hostRank)
		want string
	}{
		"a row was changed": {func(m *hostRank) { m.x.Data.Raw()[7] ^= 1 }, "dispatch: row"},
		"weights differ": {func(m *hostRank) {
			m.sets[0].weights[0] *= 2
			m.sets[0].weight = weft.TensorOf(append([]float32{.5}, m.sets[0].weights[1:]...), 5, 3)
		}, "combine: the sum"},
		"routing differs": {func(m *hostRank) {
			ids := m.sets[0].ids[m.Comm.Rank()]
			sent := append([]int32(nil), ids...)
			m.sets[0].topk = weft.TensorOf(sent, 5, 3)
			ids[0], ids[1] = ids[1], ids[0]
			ids[0] = (ids[0] + 3) % 8
		}, "dispatch:"},
	}
	for name, tc := range lies {
		t.Run(name, func(t *testing.T) {
			inProcess(t, 1, func(h *timing.Host) error {
				m := &hostRank{Host: h, expected: expected{cfg: shapeOf(nil)}}
				if err := m.setUp(); err != nil {
					return err
				}
				defer m.handle.Close()
				defer m.release()
				problem := func() (string, error) {
					all, err := h.Time(timing.Effort{Iterations: 1}, timing.Rounds{
						Operations: m.operations(), Checked: func(int, int) bool { return true },
					})
					if err != nil {
						return "", err
					}
					return all[0].Problem, nil
				}
				if p, err := problem(); err != nil || p != "" {
					return fmt.Errorf("before the lie: %v %s", err, p)
				}
				tc.lie(m)
				p, err := problem()
				if err != nil {
					return err
				}
				if !strings.HasPrefix(p, tc.want) {
					return fmt.Errorf("problem %q, want %q", p, tc.want)
				}
				return nil
			})
		})
	}
}

func TestEveryRoutingIsPoisonedBeforeItIsChecked(t *testing.T) {
	m := &hostRank{sets: make([]batch, 4)}
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

// The default comes first, as the packages behind have it; what cannot be measured is missing.
func TestChoices(t *testing.T) {
	for want, got := range map[string][]string{
		"expert-major expert-packed rank-major token-major":                       Layouts(),
		"exact partial partial-by-selection partial-by-host partial-by-host-fp32": Reductions(),
		"weighted plain":               Weightings(),
		"host device":                  CountModes(),
		"bf16 fp16 fp32 fp8 fp8-ue8m0": Payloads(),
		"row-major column-major":       ScaleOrders(),
	} {
		if d := cmp.Diff(strings.Fields(want), got); d != "" {
			t.Error(d)
		}
	}
}

// Scales that stand in another order, or at another index of the same row, are not taken for the
// right ones.
func TestScalesOutOfOrderAreNoticed(t *testing.T) {
	const rows, hidden = 6, 8 * ep.ScaleBlock
	for _, payload := range []ep.Payload{ep.FP8, ep.FP8UE8M0} {
		t.Run(payload.String(), func(t *testing.T) {
			m := expected{cfg: Shape{Hidden: hidden}, spec: ep.Spec{Payload: payload, ScaleOrder: ep.ColumnMajorScales}}
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

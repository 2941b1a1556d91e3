package collective

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/collective"
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
		inProcess(t, 3, func(h *timing.Host) error {
			series, err := Measure(h, AllReduce{
				Bytes: []int64{8, 4096}, DType: tc.dtype, Op: tc.op, Heap: tc.op == "sum", InPlace: tc.op == "max",
				Effort: timing.Effort{Iterations: 4, Warmup: 2},
			})
			if err != nil {
				return err
			}
			for _, s := range series {
				if s.Problem != "" || len(s.Durations()) != 4 {
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
	for _, inPlace := range []bool{false, true} {
		inProcess(t, 2, func(h *timing.Host) error {
			m, free, err := newAllReducer(h, AllReduce{Heap: true, InPlace: inPlace}, 64, weft.Float32, weft.Sum)
			if err != nil {
				return err
			}
			defer free()
			problem := func(o timing.Operation) (string, error) {
				all, err := h.Time(timing.Effort{Iterations: 1}, timing.Rounds{
					Operations: []timing.Operation{o}, Checked: func(int, int) bool { return true },
				})
				if err != nil {
					return "", err
				}
				return all[0].Problem, nil
			}
			o := m.operation()
			if p, err := problem(o); err != nil || p != "" {
				return fmt.Errorf("before anything is wrong: %v %s", err, p)
			}
			// What lies there from the time before must not pass.
			o.Run = func(bool) error { return nil }
			if p, err := problem(o); err != nil || p != "the result of 64 B is wrong" {
				return fmt.Errorf("a reduction that does nothing: %v %q", err, p)
			}
			return nil
		})
	}
}

// The default comes first, as the packages behind have it; what cannot be measured is missing.
func TestChoices(t *testing.T) {
	for want, got := range map[string][]string{
		"sum prod min max avg": Ops(),
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

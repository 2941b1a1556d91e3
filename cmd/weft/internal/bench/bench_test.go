package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
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

// shapeOf is a small shape on the host.
func shapeOf(change func(*ep.Shape)) ep.Shape {
	e := ep.Shape{
		Tokens: 5, Hidden: 512, TopK: 3, Experts: 8, DType: "bf16", Layout: "expert-major",
		Reduction: "exact", Weighting: "weighted", Counts: "host", Routing: routing.Uniform, Seed: 3, Batches: 1,
		Effort: timing.Effort{Iterations: 6},
	}
	if change != nil {
		change(&e)
	}
	return e
}

func TestValidate(t *testing.T) {
	shape := func(change func(*ep.Shape)) Task { e := shapeOf(change); return Task{EP: &e} }
	reduce := func(change func(*collective.Sweep)) Task {
		a := collective.Sweep{
			Kind: "allreduce", Bytes: []int64{8, 64}, DType: "fp32", Op: "sum",
			Algorithm: collective.Named("allreduce").Algorithms(false)[0],
			Effort:    timing.Effort{Time: time.Second},
		}
		if change != nil {
			change(&a)
		}
		return Task{Collective: &a}
	}
	join := func(n int) Task { return Task{Join: &Join{timing.Effort{Iterations: n}}} }
	longest := shape(func(e *ep.Shape) {
		e.Effort = timing.Effort{Iterations: timing.MostIterations, Time: timing.MostTime}
	})
	good := []Task{shape(nil), reduce(nil), join(1), join(timing.MostIterations), longest}
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
		"--warmup -5":          shape(func(e *ep.Shape) { e.Warmup = -5 }),
		"--warmup 100001":      shape(func(e *ep.Shape) { e.Warmup = timing.MostIterations + 1 }),
		"--iters -1":           shape(func(e *ep.Shape) { e.Iterations = -1 }),
		"--iters 100001":       reduce(func(a *collective.Sweep) { a.Iterations = timing.MostIterations + 1 }),
		"--iters -2":           join(-2),
		"--time -1s":           reduce(func(a *collective.Sweep) { a.Time = -time.Second }),
		"--time 2h":            shape(func(e *ep.Shape) { e.Time = 2 * time.Hour }),
		"--batches 0":          shape(func(e *ep.Shape) { e.Batches = 0 }),
		"tokens 0":             shape(func(e *ep.Shape) { e.Tokens = 0 }),
		"routing":              shape(func(e *ep.Shape) { e.Routing = "cold" }),
		"multiple of the rank": shape(func(e *ep.Shape) { e.Experts = 7 }),
		"opaque":               shape(func(e *ep.Shape) { e.DType = "opaque" }),
		`algorithm "nope"`:     reduce(func(a *collective.Sweep) { a.Algorithm = "nope" }),
		"ue8m0":                reduce(func(a *collective.Sweep) { a.DType = "ue8m0" }),
		"no bool":              reduce(func(a *collective.Sweep) { a.DType, a.Op = "bool", "avg" }),
		`collective "x"`:       reduce(func(a *collective.Sweep) { a.Kind = "x" }),
		"no sizes":             reduce(func(a *collective.Sweep) { a.Bytes = nil }),
		`dtype "x"`:            reduce(func(a *collective.Sweep) { a.DType = "x" }),
		`reduction "x"`:        reduce(func(a *collective.Sweep) { a.Op = "x" }),
		"of 0 bytes":           reduce(func(a *collective.Sweep) { a.Bytes = []int64{0} }),
	} {
		if err := task.Validate(2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a word about %q", err, want)
		}
	}
	if d := reduce(nil).time(); d != 2*time.Second {
		t.Errorf("two sizes for a second each take %v", d)
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
		{Collective: &collective.Sweep{
			Kind: "allreduce", Bytes: []int64{8}, DType: "fp32", Op: "sum",
			Effort: timing.Effort{Iterations: 30},
		}},
		{Join: &Join{timing.Effort{Iterations: 3}}},
		{Join: &Join{timing.Effort{Time: time.Millisecond}}},
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
	pack := func(us ...uint32) (times []byte) {
		for _, n := range us {
			times = binary.LittleEndian.AppendUint32(times, 1000*n)
		}
		return times
	}
	records, problems, err := Merge(measure.Record{Tokens: 1}, [][]timing.Series{
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
	if _, _, err := Merge(measure.Record{}, [][]timing.Series{{{Op: "a"}}, {{Op: "b"}}}, 0); err == nil {
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

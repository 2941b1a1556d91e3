package measure

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSummarize(t *testing.T) {
	us := time.Microsecond
	got, err := Summarize([][]time.Duration{
		{1 * us, 5 * us, 2 * us, 1 * us},
		{3 * us, 1 * us, 4 * us, 9 * us},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Summary{
		Iterations: 4, P50: 4 * us, P99: 9 * us, Min: 3 * us, Max: 9 * us, Mean: 21 * us / 4,
		Slowest: 1, Share: 0.75,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for name, bad := range map[string][][]time.Duration{"none": nil, "empty": {{}}, "ragged": {{1}, {1, 2}}} {
		if _, err := Summarize(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPercentileIsNearestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.Map(rapid.Int64Range(0, 1000),
			func(v int64) time.Duration { return time.Duration(v) }), 1, 200).Draw(t, "times")
		slices.Sort(times)
		p := rapid.Float64Range(0.5, 100).Draw(t, "p")
		got := Percentile(times, p)
		below, under := 0, 0
		for _, v := range times {
			if v <= got {
				below++
			}
			if v < got {
				under++
			}
		}
		n := float64(len(times))
		if float64(below) < p/100*n || float64(under) >= p/100*n {
			t.Fatalf("p%v of %d = %v: %d at most, %d less", p, len(times), got, below, under)
		}
	})
}

func TestRecordKeysAreStable(t *testing.T) {
	r := Record{
		Op: "dispatch", Engine: "host", Ranks: 4, Tokens: 128, Hidden: 7168, TopK: 8, Experts: 64, DType: "bf16",
		Layout: "expert-major", Reduction: "exact", Weighting: "weighted", Counts: "host",
		Routing: "uniform",
		Mode:    "one-call", Operand: "window", WireBytes: 6, LogicalBytes: 7, MovedBytes: 8, DeepEPBytes: 1000,
		Floor: 2, Verified: true, Host: "h", Version: "v",
	}
	r.SetTimes(Summary{
		Iterations: 9, P50: 4 * time.Microsecond, P99: 5 * time.Microsecond, Min: 1, Max: 2,
		Mean: 3, Slowest: 2,
	})
	var out strings.Builder
	if err := Lines(&out).Print(r); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("not one line: %q", out.String())
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(out.String()), &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range strings.Fields(`op engine ranks tokens hidden topk experts dtype layout reduction
		weighting counts routing mode operand iterations p50_us p99_us min_us max_us mean_us slowest_rank wire_bytes
		logical_bytes deepep_bytes moved_bytes gbps floor_us floor_ratio verified host version`) {
		if _, ok := keys[k]; !ok {
			t.Errorf("no key %q", k)
		}
		delete(keys, k)
	}
	for k := range keys {
		t.Errorf("key %q is not in the list", k)
	}
	if r.GBps != 0.25 || r.FloorRatio != 0.5 {
		t.Errorf("gbps %v, floor ratio %v", r.GBps, r.FloorRatio)
	}
}

func TestFailedRecordsKeepTheKey(t *testing.T) {
	b, _ := json.Marshal(Record{})
	if !strings.Contains(string(b), `"verified":false`) || !strings.Contains(string(b), `"p50_us":0`) {
		t.Errorf("%s", b)
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	p := Table(&out)
	for _, r := range []Record{
		{
			Op: "dispatch", Ranks: 4, Tokens: 128, Hidden: 7168, TopK: 8, Experts: 64, DType: "bf16",
			Layout: "expert-major", P50: 123.4, Verified: true,
		},
		{
			Op: "allreduce", Ranks: 2, Collective: &Collective{Bytes: 1 << 20, Algorithm: "all-reduce/eager"},
			DType: "fp32", P50: 0.4,
		},
	} {
		if err := p.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[1], "verified") || !strings.HasSuffix(lines[2], "WRONG") ||
		!strings.Contains(lines[2], "1 MiB fp32 eager ") ||
		strings.Index(lines[0], "p50")+6 != strings.Index(lines[1], "123")+3 {
		t.Errorf("\n%s", out.String())
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 tokens", 1: "1 token", 2: "2 tokens"} {
		if got := Count(n, "token"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

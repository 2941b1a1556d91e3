package measure

import (
	"encoding/json"
	"regexp"
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

// A table explains its columns once, says what rows have in common where that changes, and keeps rows below
// their heads.
func TestTable(t *testing.T) {
	var out strings.Builder
	p := Table(&out)
	reduce := func(bytes int64) Record {
		return Record{
			Op: "allreduce", Ranks: 2, DType: "fp32", Reduction: "sum", P50: 0.4, FloorRatio: 0.5, Floor: 0.2,
			Collective: &Collective{Bytes: bytes, Algorithm: "all-reduce/eager", BusBW: 3.5, Wrong: 7},
		}
	}
	inPlace := reduce(8)
	inPlace.InPlace, inPlace.Verified, inPlace.Wrong = true, true, 0
	for _, r := range []Record{
		{
			Op: "dispatch", Ranks: 4, Tokens: 128, Hidden: 7168, TopK: 8, Experts: 64, DType: "bf16",
			Layout: "expert-major", P50: 123.4, Verified: true,
		},
		reduce(1 << 20), reduce(1 << 10), inPlace,
		{Op: "barrier", Ranks: 2, Collective: &Collective{Algorithm: "barrier/eager"}, Verified: true},
		{Op: "join", Ranks: 8, P50: 9000, Memory: 17 << 20, Verified: true},
	} {
		if err := p.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	text := out.String()
	for _, want := range []string{
		"# rows of 7168 bf16, top-8 of 64 experts, expert-major\nop  ",
		"# fp32 sum, out of place\nop  ", "# fp32 sum, in place\nop  ", "join       8       9000",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, text)
		}
	}
	for _, column := range strings.Fields("p50 p99 slowest GB/s floor ratio size algbw busbw #wrong algorithm memory") {
		if !regexp.MustCompile(`(?m)^# (.*\W)?` + column + `[:,]`).MatchString(text) {
			t.Errorf("no legend of %s", column)
		}
	}
	// Values end where the names of their columns do.
	for start, ends := range map[string]map[string]string{
		"dispatch ": {"p50 us": "123", "floor us": "-", "tokens": "128"},
		"allreduce         2     1 MiB": {
			"p50 us": "0.40", "busbw": "3.50", "ratio": "0.50", "#wrong": "7", "floor us": "0.20",
		},
		"barrier ": {"size": "-", "algbw": "-"},
	} {
		before, rest, _ := strings.Cut(text, "\n"+start)
		line, _, _ := strings.Cut(start+rest, "\n")
		head := before[strings.LastIndex(before, "\nop ")+1:]
		for name, value := range ends {
			if end := strings.Index(head, name) + len(name); !strings.HasSuffix(line[:end], " "+value) {
				t.Errorf("%s is not %s in\n%s\n%s", name, value, head, line)
			}
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 121 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if strings.Count(text, " verified") != 3 || strings.Count(text, " WRONG") != 2 {
		t.Error(text)
	}
}

func TestVerdict(t *testing.T) {
	var records []Record
	for _, tokens := range []int{512, 1} {
		for _, op := range []string{"dispatch", "combine", "prepare"} {
			records = append(records, Record{
				Op: op, Ranks: 2, Tokens: tokens, P50: float64(10 * tokens), Floor: float64(5 * tokens), Verified: true,
			})
		}
	}
	for _, bw := range []float64{1, 4} {
		records = append(records, Record{
			Op: "allreduce", Engine: "host", Ranks: 2, Collective: &Collective{Bytes: 8, BusBW: bw}, Verified: true,
		})
	}
	want := []string{
		"output: 8 of 8 rows verified in this run",
		"speed: on 2 ranks dispatch and combine take 20.0 us for 1 token and 10240 us for 512: a ratio of 0.50, where " +
			"1 is memcpy's speed for the same bytes",
		"average bus bandwidth: 2.50 GB/s of allreduce on 2 ranks (host), at most 4.00",
	}
	if d := cmp.Diff(want, Verdict(records)); d != "" {
		t.Error(d)
	}
	records[3].Verified = false
	if got := Verdict(records)[0]; got != "output: WRONG in 1 of 8 rows" {
		t.Errorf("%q", got)
	}
	if got := Verdict(nil); got != nil {
		t.Errorf("%q", got)
	}
}

// The floor of a collective is as long as the ceiling takes for what busbw counts.
func TestCeiling(t *testing.T) {
	r := Record{Collective: &Collective{Bytes: 4000, Bus: 1.5}}
	r.SetTimes(Summary{Iterations: 1, P50: 4 * time.Microsecond})
	if r.SetCeiling(3); r.Floor != 2 || r.FloorRatio != 0.5 || r.BusBW/r.Ceiling != r.FloorRatio {
		t.Errorf("%+v %+v", r, r.Collective)
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 tokens", 1: "1 token", 2: "2 tokens"} {
		if got := Count(n, "token"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

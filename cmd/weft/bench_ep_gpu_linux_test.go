package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/report"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
)

func TestBenchEPOnGPUsFindsMistakes(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string]string{
		"--device tpu":                   "want host or gpu",
		"--gpus 2":                       "--gpus is for --device gpu",
		"--device gpu --weighting plain": "--weighting is for --device host",
		"--device gpu --report " + t.TempDir() + "/x/y": "nothing can be written there",

		"--device gpu --quantize bf16 --payload fp16":     "fp16 rows are not quantised",
		"--device gpu --dtype bf16 --scales column-major": "only fp8 payloads have scales",

		"--device gpu --ranks 1,2":                     "one number",
		"--device gpu --replays 0":                     "want at least",
		"--device gpu --operations 100000":             "at most 2000",
		"--device gpu --sms 8,-1":                      "want whole numbers from 0 on",
		"--device gpu --calls phases":                  "--calls is for --device host",
		"--gradients":                                  "--gradients is for --device gpu",
		"--mode phases":                                "want ll or ht",
		"--device gpu --mode ht --reduction exact":     "use a partial reduction",
		"--device gpu --ranks 3":                       "--experts is",
		"--device gpu --lines " + t.TempDir() + "/x/y": "no such file",
	} {
		_, errs := command(t, 2, append([]string{"bench", "ep"}, strings.Fields(line)...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	if _, err := cuda.Open(); err != nil {
		kept := filepath.Join(t.TempDir(), "lines")
		if err := os.WriteFile(kept, []byte("of before"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"ep --device gpu", "link", "start", "overlap"} {
			command(t, 1, slices.Concat([]string{"bench"}, strings.Fields(what), []string{"--lines", kept})...)
			if now, err := os.ReadFile(kept); string(now) != "of before" || err != nil {
				t.Errorf("bench %s: without a GPU the lines of before are %q: %v", what, now, err)
			}
		}
		if _, errs := command(t, 1, "bench", "ep", "--device", "gpu"); !strings.HasPrefix(errs, "weft: bench ep: ") {
			t.Errorf("%q", errs)
		}
	}
}

// shapesOf are the shapes that a command line asks for.
func shapesOf(t *testing.T, line string) []benchep.Shape {
	t.Helper()
	cmd := newBenchEP()
	cmd.ResetFlags()
	e, g := newEPFlags(cmd), newGPUFlags(cmd)
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	e.setDefaults(cmd)
	shapes, err := g.shapes(cmd, e)
	if err != nil {
		t.Fatal(err)
	}
	return shapes
}

func TestShapesOnGPUs(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string][]string{
		"": {
			"rank-major bf16", "expert-major partial bf16",
			"expert-major exact fp8 column-major from bf16",
		},
		"--scales row-major": {
			"rank-major bf16", "expert-major partial bf16",
			"expert-major exact fp8 row-major from bf16",
		},
		"--dtype fp8 --scales column-major":   {"expert-major exact fp8 column-major from bf16"},
		"--layout rank-major":                 {"rank-major bf16"},
		"--layout rank-major --payload fp16":  {"rank-major fp16"},
		"--layout expert-major":               {"expert-major exact bf16"},
		"--reduction partial --quantize bf16": {"expert-major partial fp8 row-major from bf16"},
		"--quantize bf16 --dtype fp8-ue8m0":   {"expert-major exact fp8-ue8m0 row-major from bf16"},
		"--capacity 128 --sms 24 --experts 64": {
			"rank-major bf16", "expert-major partial bf16",
			"expert-major exact fp8 column-major from bf16",
		},
	} {
		var got []string
		for _, s := range shapesOf(t, line+" --tokens 3") {
			got = append(got, s.Contract())
			spec, err := s.DeviceSpec(4)
			if err != nil || s.Tokens != 3 || s.Hidden != 7168 || s.TopK != 8 {
				t.Errorf("%s: %+v, %v", line, s, err)
			}
			experts, capacity, sms := 256, 3, 0
			if strings.Contains(line, "sms") {
				experts, capacity, sms = 64, 128, 24
			}
			if (spec.ScaleOrder == ep.ColumnMajorScales) != strings.Contains(s.Contract(), " column-major") {
				t.Errorf("%s: %+v", line, spec)
			}
			if spec.Experts != experts || spec.MaxTokens != capacity || spec.SMs != sms {
				t.Errorf("%s: %+v", line, spec)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
	if n := len(shapesOf(t, "")); n != 15 {
		t.Errorf("%d shapes", n)
	}
}

func TestThroughputShapesOnGPUs(t *testing.T) {
	onlyReads(t)
	both := func(layout, reduction, order string) []string {
		return []string{layout + " " + reduction + " bf16", layout + " " + reduction + " fp8 " + order}
	}
	for line, want := range map[string]struct {
		contracts   []string
		tokens, sms []int
	}{
		"":                            {both("token-major", "partial", "row-major"), []int{4096}, []int{8, 12, 24, 96}},
		"--tokens 128,8192 --sms 8,0": {both("token-major", "partial", "row-major"), []int{128, 8192}, []int{8, 0}},
		"--layout expert-packed":      {both("expert-packed", "exact", "row-major"), []int{4096}, []int{8, 12, 24, 96}},
		"--scales column-major":       {both("token-major", "partial", "column-major"), []int{4096}, []int{8, 12, 24, 96}},
		"--dtype fp8 --quantize bf16": {
			[]string{"token-major partial fp8 row-major from bf16"},
			[]int{4096},
			[]int{8, 12, 24, 96},
		},
		"--dtype bf16 --capacity 8192": {[]string{"token-major partial bf16"}, []int{4096}, []int{8, 12, 24, 96}},
	} {
		shapes := shapesOf(t, "--mode ht "+line)
		i := 0
		for _, contract := range want.contracts {
			for _, tokens := range want.tokens {
				for _, sms := range want.sms {
					s := shapes[i]
					spec, err := s.DeviceSpec(4)
					if err != nil || s.Contract() != contract || s.Tokens != tokens || s.SMs != sms || spec.Experts != 256 {
						t.Errorf("%s: %s, %+v, %v", line, s.Contract(), s, err)
					}
					if quantised := strings.HasSuffix(contract, "from bf16"); (spec.Quantize != 0) != quantised {
						t.Errorf("%s: %+v", line, spec)
					}
					i++
				}
			}
		}
		if i != len(shapes) {
			t.Errorf("%s: %d shapes, want %d", line, len(shapes), i)
		}
	}
	cmd := newBenchEP()
	cmd.ResetFlags()
	g := newGPUFlags(cmd)
	if err := cmd.ParseFlags([]string{"--phases", "fused"}); err != nil {
		t.Fatal(err)
	}
	if g.setDefaults(cmd, lowLatency); g.gradients || g.phases != "fused" {
		t.Errorf("%+v", g)
	}
	if g.setDefaults(cmd, highThroughput); !g.gradients || g.phases != "fused" {
		t.Errorf("%+v", g)
	}
}

func TestModesOnTheHost(t *testing.T) {
	for line, want := range map[string]string{
		"":                      "expert-major exact weighted [1 8 64 512]",
		"--mode ht":             "token-major partial plain [4096]",
		"--mode ht --tokens 64": "token-major partial plain [64]",
		"--mode ht --layout expert-packed --calls phases": "expert-packed exact weighted [4096]",
	} {
		cmd := newBenchEP()
		cmd.ResetFlags()
		e := newEPFlags(cmd)
		if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		e.setDefaults(cmd)
		s := e.shape
		if got := fmt.Sprint(s.Layout, " ", s.Reduction, " ", s.Weighting, " ", []int(e.tokens)); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
		if s.Phases != strings.Contains(line, "phases") {
			t.Errorf("%s: %+v", line, s)
		}
	}
}

func TestGPURowsAreExplained(t *testing.T) {
	help, _, _ := newRoot().Find([]string{"bench", "ep"})
	for _, v := range []any{benchep.GPURow{}, bench.Peer{}, where{}} {
		always, sometimes := keys(v)
		for _, key := range append(always, sometimes...) {
			if key != "" && !strings.Contains(help.Long, key) {
				t.Errorf("%s is not explained", key)
			}
		}
	}
}

func TestGPUPrinter(t *testing.T) {
	rows := []benchep.GPURow{
		{
			Op: "dispatch", Contract: "rank-major bf16", Tokens: 8, Capacity: 128, SMsUsed: 17, P50: 4.25,
			Floor: 0.3, FloorRatio: 0.07, Verified: true,
		},
		{
			Op: "combine", Contract: "rank-major bf16", Tokens: 8, Capacity: 8,
			Problems: []string{"the sum of token 3"}, Timed: [][]float64{{3, 500}},
		},
	}
	right := true
	peers := []bench.Peer{
		{Op: "all-to-all", Contract: "A", WireBytes: 1 << 20, P50: 8.5, Verified: &right},
		{Op: "all-to-all", Contract: "B", Skipped: "no torch"},
		{Op: "combine", Contract: "C", Tokens: 128, SMs: 24, P50: 57, Date: "2026-11-20", Source: "somewhere"},
		{Op: "all-to-all", Contract: "D", WireBytes: 1, Verified: new(bool)},
	}
	show := func(asJSON bool) (shown, lines string) {
		var out, all strings.Builder
		p := &gpuPrinter{to: &out, lines: &all, json: asJSON, here: where{"NVIDIA H200", "h", "v"}}
		for i, r := range rows {
			if err := p.row(r); err != nil || p.wrong != (i == 1) {
				t.Errorf("%v, wrong: %v", err, p.wrong)
			}
		}
		if err := p.peers(peers); err != nil {
			t.Error(err)
		}
		file := filepath.Join(t.TempDir(), "report.html")
		if err := writeReport(file, "a host",
			report.Report{Facts: []report.Fact{{Name: "links", Value: "343 GB/s"}}, GPUs: &p.found}); err != nil {
			t.Fatal(err)
		}
		page, err := os.ReadFile(file)
		for _, want := range []string{
			"weft bench on a host", "343 GB/s", "2 of 4 rows gave wrong output",
			"the sum of token 3", "dispatch: time by tokens", "somewhere",
		} {
			if err != nil || !strings.Contains(string(page), want) {
				t.Errorf("no %q in the report, %v", want, err)
			}
		}
		return out.String(), all.String()
	}
	table, lines := show(false)
	for _, want := range []string{
		"8/128", "8/128   17 ", " SMs ", "4.25", " floor  ratio  output\n", " 0.30   0.07  verified\n", "# floor: ",
		"verified", "WRONG: the sum of token 3, replays differ",
		"skipped: no torch", "1 MiB", "2026-11-20 (1)", "128 on 24 SMs",
		"here: somewhere", "in this run, WRONG",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	printed, same := show(true)
	if printed != same || lines != same || strings.Count(lines, "\n") != len(rows)+len(peers) {
		t.Errorf("%s\n%s", printed, lines)
	}
	for line := range strings.Lines(lines) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil || object["device"] != "NVIDIA H200" ||
			object["contract"] == nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	if !strings.Contains(lines, `"replays_us":[[3,500]]`) {
		t.Errorf("%s", lines)
	}
}

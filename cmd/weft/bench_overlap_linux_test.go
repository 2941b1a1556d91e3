package main

import (
	"encoding/json"
	"strings"
	"testing"

	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cuda"
)

func TestBenchOverlapFindsMistakes(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string]string{
		"--gpus -1":                            "want at least 0",
		"--sms 0":                              "want whole numbers from 1 on",
		"--operations 0":                       "want 1 to",
		"--replays 100000":                     "want 1 to",
		"--deadline 0s":                        "more than 0s",
		"--layout sideways":                    "want expert-major",
		"--tokens 0":                           "tokens 0",
		"--ranks 3":                            "--experts is",
		"--product-rows 100":                   "multiples of 64",
		"--lines " + t.TempDir() + "/x/y":      "no such file",
		"extra":                                "weft: ",
		"--product-inner 31 --product-rows 64": "multiples of 64",
	} {
		if _, errs := command(t, 2, append([]string{"bench", "overlap"},
			strings.Fields(line)...)...); !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	if _, err := cuda.Open(); err != nil {
		if _, errs := command(t, 1, "bench", "overlap"); !strings.HasPrefix(errs, "weft: bench overlap: ") {
			t.Errorf("%q", errs)
		}
	}
}

func TestOverlapRowsAreExplained(t *testing.T) {
	help, _, _ := newRoot().Find([]string{"bench", "overlap"})
	for _, v := range []any{benchep.OverlapRow{}, where{}} {
		always, sometimes := keys(v)
		for _, key := range append(always, sometimes...) {
			if key != "" && !strings.Contains(help.Long, key) {
				t.Errorf("%s is not explained", key)
			}
		}
	}
}

func TestOverlapPrinter(t *testing.T) {
	rows := []benchep.OverlapRow{
		{
			Op: "dispatch", Contract: "token-major partial bf16", Ranks: 4, GPUs: 4, Tokens: 4096, SMsUsed: 8,
			Alone: 525.25, Beside: 601.5, Slowdown: 1.145, Product: "4096x4096x7168",
			ProductAlone: 800, ProductBeside: 860, ProductSlowdown: 1.075, TFlops: 300.4, Share: 1.0645,
			Covered: true, Verified: true,
		},
		{Op: "combine", Problems: []string{"the sum of token 3"}},
	}
	show := func(asJSON bool) (shown, lines string) {
		var out, file strings.Builder
		p := &overlapPrinter{gpuPrinter{to: &out, lines: &file, json: asJSON, here: where{"NVIDIA H200", "h", "v"}}}
		for i, r := range rows {
			if err := p.row(r); err != nil || p.wrong != (i == 1) {
				t.Errorf("%v, wrong: %v", err, p.wrong)
			}
		}
		return out.String(), file.String()
	}
	table, lines := show(false)
	for _, want := range []string{
		"4 ranks on 4 GPUs (NVIDIA H200)", "4096x4096x7168, 300 TFLOPS", "525.2", "601.5", "1.15", "860.0",
		"1.07", "1.06", "verified\n",
		"WRONG: the sum of token 3, not covered",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	printed, same := show(true)
	if printed != same || lines != same || strings.Count(lines, "\n") != len(rows) {
		t.Errorf("%s\n%s", printed, lines)
	}
	for line := range strings.Lines(lines) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil || object["device"] != "NVIDIA H200" ||
			object["verified"] == nil {
			t.Errorf("%v: %s", err, line)
		}
	}
}

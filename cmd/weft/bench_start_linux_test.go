package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestBenchStartFindsMistakes(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string]string{
		"extra":                    "it takes no arguments",
		"--gpus -1":                "want at least 0",
		"--ranks -1":               "want at least 0",
		"--ranks 1,2":              "want a whole number",
		"--ranks 3":                "--experts is",
		"--rounds 0":               "1 to 100",
		"--rounds 101":             "1 to 100",
		"--deadline 0s":            "more than 0s",
		"--tokens 0":               "tokens 0",
		"--capacity -1":            "a capacity of -1",
		"--dtype fp8 --hidden 100": "multiple of 128",
		"--dtype opaque":           "want ",
		"--sms 8":                  "there is no flag --sms",

		"--lines " + t.TempDir() + "/x/y": "no such file",
	} {
		_, errs := command(t, 2, append([]string{"bench", "start"}, strings.Fields(line)...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	if driver, err := cuda.Open(); err != nil {
		if _, errs := command(t, 1, "bench", "start"); !strings.HasPrefix(errs, "weft: bench start: ") {
			t.Errorf("%q", errs)
		}
	} else if n := len(driver.Devices()); n > 0 {
		if _, errs := command(t, 1, "bench", "start", "--gpus", "99"); !strings.Contains(errs, "99 GPUs: this process sees") {
			t.Errorf("%q", errs)
		}
	}
}

func TestStartRowsAreExplained(t *testing.T) {
	help, _, _ := newRoot().Find([]string{"bench", "start"})
	for _, v := range []any{benchep.StartRow{}, benchep.Stages{}, where{}} {
		always, sometimes := keys(v)
		for _, key := range append(always, sometimes...) {
			if key != "" && !strings.Contains(help.Long, key) {
				t.Errorf("%s is not explained", key)
			}
		}
	}
	for _, op := range []string{benchep.Driver, benchep.ColdStart, benchep.FirstStart, benchep.WarmStart} {
		if !strings.Contains(help.Long, op+":") {
			t.Errorf("%s is not explained", op)
		}
	}
}

// started is what the command shows of emulated GPUs, in a table and in lines.
func started(t *testing.T, s *startFlags, compiler func() (kernel.Compiler, error)) (table, lines string, err error) {
	t.Helper()
	on := ranktest.Emulated(t, cudatest.Config{
		Devices: 2, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 16},
	}, emulate.Options{Limit: time.Minute, Seed: 1})
	var out, file strings.Builder
	p := &startPrinter{gpuPrinter: gpuPrinter{to: &out, lines: &file}, noCold: s.noCold}
	err = s.measure(t.Context(), benchep.Start{
		Contexts: on.Contexts, Ranks: 2, Rounds: 1, Deadline: 20 * time.Second, Kernels: kernel.Options{Compiler: compiler},
	}, 1500*time.Millisecond, p)
	return out.String(), file.String(), err
}

func TestBenchStart(t *testing.T) {
	emulate.Need(t)
	t.Setenv("WEFT_CACHE", "")
	t.Setenv("WEFT_CACHE_DIR", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	s := &startFlags{onGPUsFlags: onGPUsFlags{ep: epFlags{shape: benchep.Shape{
		Tokens: 3, Hidden: 128, TopK: 2, Experts: 4, DType: "bf16", Layout: "rank-major", Reduction: "partial",
		Weighting: "plain", Routing: "uniform",
	}}}}
	for _, tc := range []struct {
		noCold bool
		want   []string
	}{
		{false, []string{"driver", "start-cold", "start-warm"}},
		{true, []string{"driver", "start-warm"}}, // the cold ones left nothing in the user's cache
		{true, []string{"driver", "start-first", "start-warm"}},
	} {
		s.noCold = tc.noCold
		table, lines, err := started(t, s, emulate.Compiler)
		if err != nil {
			t.Fatal(err)
		}
		if filled := tc.noCold && len(tc.want) == 2; strings.Contains(table, "kernels were missing") != filled {
			t.Errorf("%s", table)
		}
		at := 0
		for line := range strings.Lines(lines) {
			var row struct {
				Op     string
				Us     float64  `json:"p50_us"`
				Join   *float64 `json:"join_us"`
				Device string
			}
			if err := json.Unmarshal([]byte(line), &row); err != nil || at == len(tc.want) ||
				row.Op != tc.want[at] || row.Device == "" {
				t.Fatalf("%v, want %v: %s", err, tc.want, lines)
			}
			if (row.Join == nil) != (at == 0) || at == 0 && row.Us != 1.5e6 || !strings.Contains(table, "\n"+row.Op+" ") {
				t.Errorf("%s\n%s", line, table)
			}
			at++
		}
		if at != len(tc.want) {
			t.Errorf("want %v: %s", tc.want, lines)
		}
	}
	s.noCold = false
	_, _, err := started(t, s, func() (kernel.Compiler, error) { return nil, os.ErrNotExist })
	if !errors.Is(err, kernel.ErrNoCompiler) || !strings.Contains(err.Error(), "with --no-cold") {
		t.Error(err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

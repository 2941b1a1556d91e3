package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/cuda"
)

func TestTuneEPFindsMistakes(t *testing.T) {
	onlyReads(t)
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"--gpus -1":                          "want at least 0",
		"--tokens 0":                         "0",
		"--deadline 0s":                      "more than 0s",
		"--layout none":                      "want",
		"--sms -1":                           "want whole numbers from 0 on",
		"--quantize bf16 --dtype fp16":       "fp16 rows are not quantised",
		"--wire per-rank":                    "there is no flag --wire",
		"--tokens 3 --hidden 3 --out unmade": "16 bytes",
	} {
		_, errs := command(t, 2, append([]string{"tune", "ep"}, strings.Fields(line)...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	if _, errs := command(t, 1, "tune", "ep", "--out", broken); !strings.Contains(errs, broken) ||
		!strings.Contains(errs, "no table") {
		t.Errorf("%q", errs)
	}
	t.Setenv("WEFT_TUNING", "none")
	if _, errs := command(t, 2, "tune", "ep"); !strings.Contains(errs, "--out") {
		t.Errorf("%q", errs)
	}
	if _, err := cuda.Open(); err != nil {
		if _, errs := command(t, 1, "tune", "ep", "--out",
			filepath.Join(t.TempDir(), "table")); !strings.HasPrefix(errs, "weft: tune ep: ") {
			t.Errorf("%q", errs)
		}
	}
}

// TestTuneCollectives measures two algorithms, and reads what it has found.
func TestTuneCollectives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning.json")
	if err := os.WriteFile(path, []byte(`{"rows": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := command(t, 0, strings.Fields("tune collectives --kinds broadcast,allgather --ranks 2 --sizes 64,8K "+
		"--iters 20 --repeats 1 --out "+path)...)
	for _, want := range []string{
		"shared-memory, 2 ranks of fp32", "broadcast", "outside windows", "in place", path + ": written",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	tables, err := tuning.Read(path)
	if err != nil || len(tables) != 1 || len(tables[tuning.SharedMemory].Measured) != 9 {
		t.Errorf("%+v, %v", tables, err)
	}
	shown, _ := command(t, 0, strings.Fields("tune collectives --show --kinds broadcast --ranks 2 --out "+path)...)
	if lines := strings.SplitAfter(out, "\n"); !strings.Contains(shown, lines[1]) {
		t.Errorf("it shows %s of %s", shown, out)
	}
	t.Setenv("WEFT_TUNING", "none")
	shown, _ = command(t, 0, strings.Fields("tune collectives --device gpu --show --profile h200-nvswitch --ranks 4")...)
	for _, want := range []string{
		"one-shot to 256 KiB, two-shot to 8 MiB, direct", "one launch takes at most", "5.33 MiB",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in %s", want, shown)
		}
	}
}

func TestTuneCollectivesFindsMistakes(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string]string{
		"--kinds barrier":                 "want some of allreduce",
		"--device gpu --time 1s":          "--time is for --device host",
		"--loopback":                      "--loopback is for --device gpu",
		"--repeats 0":                     "at least 1",
		"--profile x":                     "--show",
		"--sizes 0":                       "0",
		"--device gpu --sms -1":           "at least 0",
		"--device gpu --show --profile x": "--ranks",

		"--device gpu --show --profile x --ranks 4":              "there is no such table; want one of h100-nvswitch",
		"--device gpu --show --profile h200-nvswitch --ranks 73": "want 0 to 72",
		"--device gpu --loopback --ranks 1":                      "at least 2",
		"--device gpu --operations 0":                            "operations 0",
	} {
		_, errs := command(t, 2, append([]string{"tune", "collectives"}, strings.Fields(line)...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	t.Setenv("WEFT_TUNING", "none")
	if _, errs := command(t, 2, "tune", "collectives", "--kinds", "broadcast"); !strings.Contains(errs, "--out") {
		t.Errorf("%q", errs)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda"
)

func TestTuneEPFindsMistakes(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"--gpus -1":                          "want at least 0",
		"--tokens 0":                         "0",
		"--deadline 0s":                      "more than 0s",
		"--layout none":                      "want",
		"--sms -1":                           "neither 0",
		"--quantize bf16 --dtype fp16":       "fp16 rows are not quantised",
		"--wire per-rank":                    "unknown flag",
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

package simulate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weftgo/weft/plan/spec"
)

// real decodes the plans of the folder that WEFT_PLANS names.
func real(t *testing.T, pattern string) map[string]*spec.File {
	t.Helper()
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	names, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans match %s in %s: %v", pattern, folder, err)
	}
	all := make(map[string]*spec.File)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := spec.Decode(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[filepath.Base(name)] = f
	}
	return all
}

func TestRealPlansPass(t *testing.T) {
	for name, f := range real(t, "*.json") {
		steps := 0
		for seed := range uint64(50) {
			r := Run(f, Options{Seed: seed})
			if steps += r.Steps; r.Failure != "" {
				t.Errorf("%s: seed %d: %s", name, seed, r.Failure)
				break
			}
		}
		t.Logf("%s: %d steps", name, steps)
	}
}

func TestBadPlansFail(t *testing.T) {
	for name, f := range real(t, "bad/*.json") {
		failures := 0
		var r Report
		first := ""
		for seed := range uint64(200) {
			if r = Run(f, Options{Seed: seed}); r.Failure != "" {
				if failures++; first == "" {
					first = r.Failure
				}
			}
		}
		t.Logf("%s: %d of 200: %s", name, failures, first)
		if failures == 0 {
			t.Errorf("%s: no seed fails", name)
		}
	}
}

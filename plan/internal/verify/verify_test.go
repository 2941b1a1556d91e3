package verify

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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
		for _, x := range Plan(f).Findings {
			// Its ports read their sources after the ranks have ended.
			if name != "sendrecv_port.json" || !x.Warning || x.Class != Lifetime {
				t.Errorf("%s: %v", name, x)
			}
		}
	}
}

func TestBadPlansAreRefused(t *testing.T) {
	want := map[string]struct {
		class Class
		only  bool
		text  string
	}{
		"deadlock_cycle.json": {
			Deadlock, true, "circle: rank 0, block 0, operation 1 (rlxwait) waits for a signal of memory channel 0 of rank 0, " +
				"from rank 1; rank 1, block 0, operation 1 (rlxwait)",
		},
		"channel_pairing.json": {Deadlock, false, "(wait) waits for a signal of port channel 0 of rank 2, from rank 0"},
		"semaphore_drift.json": {
			Balance, true, "semaphore 0 of rank 0 begins a launch at 0 and ends it at 1: 2 releases, 1 acquires",
		},
		"race_ranks.json": {Race, false, "rank 0, block 0, operation 3 (rres) writes chunk 0 of the input of rank 1"},
		"race_block.json": {
			RaceInBlock, true, "operation 9 (put) reads chunk 3 of the scratch of rank 1; rank 1, block 0, operation 8 (copy)",
		},
		"wrong_result.json": {
			Result, true, "chunk 9 of the output of rank 3 is wrong: of the contributions, that of rank 0 is there 2 times, " +
				"that of rank 1 is missing",
		},
		"packet_slot_reused.json": {Packets, false, "a slot is written twice in one launch"},
		"no_exit_sync.json": {
			Lifetime, true, "rank 0 may end before its buffer is written: rank 1, block 0, operation 5 (put)",
		},
	}
	for name, f := range real(t, "bad/*.json") {
		w := want[name]
		var errs []string
		for _, x := range Plan(f).Findings {
			if x.Warning {
				continue
			}
			if w.only && x.Class != w.class {
				t.Errorf("%s: %v", name, x)
			}
			errs = append(errs, x.String())
		}
		if !slices.ContainsFunc(errs, func(s string) bool { return strings.Contains(s, w.text) }) {
			t.Errorf("%s: nothing says %q:\n%s", name, w.text, strings.Join(errs, "\n"))
		}
	}
}

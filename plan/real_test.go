package plan_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
)

// realTexts are the plans of another project's package that the folder WEFT_PLANS has.
func realTexts(t testing.TB, pattern string) map[string][]byte {
	t.Helper()
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	names, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans match %s in %s: %v", pattern, folder, err)
	}
	all := make(map[string][]byte)
	for _, name := range names {
		if all[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// seeds is how many schedules a test tries: one in short tests, since the simulator is one goroutine.
func seeds(few uint64) uint64 {
	if testing.Short() {
		return 1
	}
	if os.Getenv("WEFT_TEST_ALL") != "" {
		return 1000
	}
	return few
}

func TestRealPlans(t *testing.T) {
	for name, text := range realTexts(t, "*.json") {
		f, err := plan.Load(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(append(f.Text(), '\n'), text) {
			t.Errorf("%s: the text comes back otherwise", name)
		}
		if again, err := plan.Load(f.Compact()); err != nil || !bytes.Equal(again.Text(), f.Text()) {
			t.Errorf("%s: the line comes back otherwise: %v", name, err)
		}
		for _, x := range plan.Verify(f).Findings {
			// Its ports read their sources after the ranks have ended.
			if name != "sendrecv_port.json" || !x.Warning || x.Class != plan.Lifetime {
				t.Errorf("%s: %v", name, x)
			}
		}
		for seed := range seeds(20) {
			if r := plan.Simulate(f, plan.Simulation{Seed: seed}); r.Failure != "" {
				t.Errorf("%s: seed %d: %s", name, seed, r.Failure)
				break
			}
		}
	}
}

func TestBadRealPlans(t *testing.T) {
	want := map[string]struct {
		class plan.Class
		only  bool
		text  string
	}{
		"deadlock_cycle.json": {
			plan.Deadlock, true, "circle: rank 0, block 0, operation 1 (rlxwait) waits for a signal of memory channel 0 of " +
				"rank 0, from rank 1; rank 1, block 0, operation 1 (rlxwait)",
		},
		"channel_pairing.json": {
			plan.Deadlock, false, "(wait) waits for a signal of port channel 0 of rank 2, from rank 0",
		},
		"semaphore_drift.json": {
			plan.Balance, true, "semaphore 0 of rank 0 begins a launch at 0 and ends it at 1: 2 releases, 1 acquires",
		},
		"race_ranks.json": {
			plan.Race, false, "rank 0, block 0, operation 3 (rres) writes chunk 0 of the input of rank 1",
		},
		"race_block.json": {
			plan.RaceInBlock, true, "operation 9 (put) reads chunk 3 of the scratch of rank 1; rank 1, block 0, operation 8",
		},
		"wrong_result.json": {
			plan.Result, true, "chunk 9 of the output of rank 3 is wrong: of the contributions, that of rank 0 is there " +
				"2 times, that of rank 1 is missing",
		},
		"packet_slot_reused.json": {plan.Packets, false, "a slot is written twice in one launch"},
		"no_exit_sync.json": {
			plan.Lifetime, true, "rank 0 may end before its buffer is written: rank 1, block 0, operation 5 (put)",
		},
	}
	for name, text := range realTexts(t, "bad/*.json") {
		f, err := plan.Load(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		w := want[name]
		var errs []string
		for _, x := range plan.Verify(f).Findings {
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
		failure := ""
		for seed := uint64(0); seed < 200 && failure == ""; seed++ {
			failure = plan.Simulate(f, plan.Simulation{Seed: seed}).Failure
		}
		if failure == "" {
			t.Errorf("%s: no seed fails", name)
		}
	}
}

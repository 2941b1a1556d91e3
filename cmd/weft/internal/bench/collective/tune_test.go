package collective

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/internal/ranktest"
)

// testTune measures all algorithms of some kinds on GPUs: each has times of all sizes that it fits, and the table
// that they make chooses the fastest.
func testTune(t *testing.T, g GPUs, ranks int, kinds []string, loopback bool) {
	t.Helper()
	g.Graph, g.Loopback = true, loopback
	sweep := sweepOf(*Named(kinds[0]))
	sweep.Bytes, sweep.Effort = []int64{64, 20_000}, timing.Effort{}
	table := &tuning.Table{}
	for _, kind := range kinds {
		trials := Trials(true, kind, ranks, loopback)
		direct := func(t *Trial) bool { return strings.HasSuffix(t.Algorithm.Name, "/direct") }
		if slices.ContainsFunc(trials, direct) == loopback {
			t.Errorf("%s, loopback %t: %d trials", kind, loopback, len(trials))
		}
		wrong, err := Search(trials, 1, func(one *Trial) error { return g.Try(t.Context(), sweep, one) }, table)
		if err != nil || len(wrong) > 0 {
			t.Fatalf("%s: %v, wrong: %q", kind, err, wrong)
		}
		for _, one := range trials {
			m, ok := one.Measured()
			if !ok && len(g.Contexts) > 1 && strings.HasSuffix(one.Algorithm.Name, "/lines") {
				continue // lines were not seen to arrive whole at other GPUs
			}
			if !ok || len(m.Points) != len(sweep.Bytes) || m.Ranks != ranks ||
				m.Points[0].Bytes != 64/Named(kind).sent(ranks) {
				t.Errorf("%s: %+v", one.Name(), m)
			}
		}
	}
	table.Put(spec.Measured{Algorithm: "all-gather/few-sm", Ranks: 2, Points: []spec.Point{{Bytes: 64}}})
	full := table.Over(tuning.Builtin("x-shared"))
	for _, c := range Choices(true, collective.Options{}, full, kinds, ranks, weft.Float32) {
		if c.Kind == "allgather" && c.Operands == "in windows" && !strings.HasPrefix(c.String(), "few-sm") {
			t.Errorf("%v: not what takes no time", &c)
		}
		if c.Ranks != ranks || len(c.Ranges) == 0 || strings.Contains(c.String(), "/") {
			t.Errorf("%+v: %v", c, &c)
		}
	}
}

func TestTuneOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	testTune(t, emulatedGPUs(t, 2), 2, []string{"allreduce", "allgather"}, false)
	testTune(t, emulatedGPUs(t, 1), 3, []string{"allreduce"}, true)
}

// TestTuneOnGPUs is the same on real ones, which ranks may share.
func TestTuneOnGPUs(t *testing.T) {
	contexts := ranktest.Real(t).Contexts
	g := GPUs{GPUs: timing.GPUs{Contexts: contexts, Operations: 20, Replays: 3}}
	testTune(t, g, max(2, len(contexts)), Tunable(true), false)
	testTune(t, g, 4, []string{"allreduce"}, true)
}

// TestTrials: an algorithm that was wrong has no times, nor has a size that another one ran.
func TestTrials(t *testing.T) {
	for kind, names := range map[string][]string{
		"allreduce": {"pull-push", "push-push"}, "allgather": {"few-sm", "lines", "engine"}, "reduce": {"pull"},
	} {
		for _, name := range names {
			if !slices.ContainsFunc(Trials(true, kind, 4, false), func(t *Trial) bool {
				return strings.HasSuffix(t.Algorithm.Name, "/"+name)
			}) {
				t.Errorf("%s: %s is not tried", kind, name)
			}
		}
	}
	trials := Trials(false, "allgather", 4, false)
	if len(trials) != 3 || len(Trials(false, "allreduce", 4, false)) != 5+4 {
		t.Fatalf("%d trials", len(trials))
	}
	try := func(one *Trial) error {
		for _, r := range []measure.Record{
			{P50: 3, Verified: true, Collective: &measure.Collective{Bytes: 400, Algorithm: one.Algorithm.Name}},
			{P50: 2, Verified: true, Collective: &measure.Collective{Bytes: 400, Algorithm: one.Algorithm.Name}},
			{P50: 9, Verified: true, Collective: &measure.Collective{Bytes: 800, Algorithm: "another"}},
			{P50: 9, Verified: one != trials[1], Collective: &measure.Collective{Bytes: 1200, Algorithm: one.Algorithm.Name}},
		} {
			one.Take(r)
		}
		return nil
	}
	table := &tuning.Table{}
	for _, name := range []string{"all-gather/pull", "all-gather-v/pull"} {
		table.Put(spec.Measured{Algorithm: name, Ranks: 4, Points: []spec.Point{{Bytes: 1}}})
	}
	wrong, err := Search(trials, 2, try, table)
	if err != nil || len(wrong) != 2 || !strings.Contains(wrong[0], "all-gather/pull") ||
		!strings.Contains(wrong[1], "the times of all-gather/pull in the table are dropped") ||
		!strings.Contains(wrong[1], "the times of all-gather-v/pull in the table are dropped") {
		t.Errorf("%q, %v", wrong, err)
	}
	want := "["
	for _, name := range []string{"/eager", "-v/eager", "/pipeline", "-v/pipeline"} {
		want += fmt.Sprintf("{all-gather%s 4 false [{100 2} {300 9}]} ", name)
	}
	if got := fmt.Sprint(table.Measured); got != strings.TrimSpace(want)+"]" {
		t.Errorf("%s, want %s", got, want)
	}
}

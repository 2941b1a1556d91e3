package plan_test

import (
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// build builds a plan, or fails the test.
func build(t testing.TB, p *plan.Plan) *plan.File {
	t.Helper()
	f, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPrograms(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range plantest.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			f := build(t, p.Build())
			for _, x := range plan.Verify(f).Findings {
				t.Error(x)
			}
			for seed := range seeds(20) {
				if r := plan.Simulate(f, plan.Simulation{Seed: seed}); r.Failure != "" {
					t.Fatalf("seed %d: %s", seed, r.Failure)
				}
			}
			text := f.Text()
			again, err := plan.Load(text)
			if err != nil || string(again.Text()) != string(text) {
				t.Errorf("the text comes back otherwise: %v", err)
			}
			for _, r := range f.Ranks {
				for _, b := range r.Blocks {
					for _, op := range b.Ops {
						seen[op.Kind.String()+op.Via.String()] = true
						for _, o := range op.Ops {
							seen[o.Kind.String()+o.Via.String()] = true
						}
					}
				}
			}
		})
	}
	for _, kind := range []string{
		"nop", "barrier", "sem_acquire", "sem_release", "signalmemory", "signalport", "waitmemory", "waitport",
		"rlxsignalmemory", "rlxwaitmemory", "flushport", "copy", "putmemory", "putport", "pwsport", "pwsfport", "getmemory",
		"re", "rrememory", "resmemory", "rresmemory", "cpkt", "upkt", "ppktmemory", "ppktport", "rppktmemory", "rppktport",
		"repkt", "respktmemory", "recpkt", "recspktmemory", "glreswitch", "gstoreswitch", "gstorepktswitch", "glresswitch",
		"pipeline",
	} {
		if !seen[kind] {
			t.Errorf("no program has %s", kind)
		}
	}
}

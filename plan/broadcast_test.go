package plan_test

import (
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
)

// broadcast is one of three ranks, from the given root to the next rank and from there to the last.
func broadcast(root int) *plan.Plan {
	p := plan.New("broadcast", plan.Broadcast(3, root, 1), plan.Options{})
	at := []int{root, (root + 1) % 3, (root + 2) % 3}
	src := p.Rank(root).Input().Chunk(0, 1)
	p.Rank(root).Block(0).Copy(p.Rank(root).Output().Chunk(0, 1), src)
	for i, r := range at[:2] {
		next := at[i+1]
		here, there := p.Memory(r, next), p.Memory(next, r)
		p.Rank(next).Block(0).Signal(there)
		b := p.Rank(r).Block(0)
		b.Wait(here)
		b.Put(here, p.Rank(next).Output().Chunk(0, 1), src)
		b.Signal(here)
		p.Rank(next).Block(0).Wait(there)
		src = p.Rank(next).Output().Chunk(0, 1)
	}
	return p
}

// TestBroadcast has the rank with an input be the root, and all outputs be that.
func TestBroadcast(t *testing.T) {
	for root := range 3 {
		f := build(t, broadcast(root))
		for _, x := range plan.Verify(f).Findings {
			t.Error(x)
		}
		for seed := range seeds(20) {
			if r := plan.Simulate(f, plan.Simulation{Seed: seed}); r.Failure != "" {
				t.Fatalf("seed %d: %s", seed, r.Failure)
			}
		}
		text := f.Text()
		if again, err := plan.Load(text); err != nil || string(again.Text()) != string(text) {
			t.Errorf("the text comes back otherwise: %v", err)
		}
	}
	// The last rank is left out.
	p := plan.New("broadcast", plan.Broadcast(2, 1, 1), plan.Options{})
	p.Rank(1).Block(0).Copy(p.Rank(1).Output().Chunk(0, 1), p.Rank(1).Input().Chunk(0, 1))
	f := build(t, p)
	if v := plan.Verify(f); v.Errors() != 1 || v.Findings[0].Class != plan.Result {
		t.Errorf("%v", v.Findings)
	}
	if r := plan.Simulate(f, plan.Simulation{}); !strings.Contains(r.Failure, "the output of rank 0 is wrong") {
		t.Errorf("%q", r.Failure)
	}
	// With inputs on all ranks the name means nothing.
	if v := plan.Verify(build(t, plan.New("any", plan.Custom("broadcast", 2, 1, 1), plan.Options{}))); v.Errors() != 0 {
		t.Errorf("%v", v.Findings)
	}
	if _, err := plan.New("none", plan.Broadcast(2, 2, 1), plan.Options{}).Build(); err == nil ||
		!strings.Contains(err.Error(), "broadcast_test.go") || !strings.Contains(err.Error(), "root 2 of 2 ranks") {
		t.Errorf("%v", err)
	}
}

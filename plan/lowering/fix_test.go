package lowering_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// bare is a plan without the barriers of blocks' threads.
func bare(f *spec.File) *spec.File {
	to := *f
	to.Ranks = slices.Clone(f.Ranks)
	for r := range to.Ranks {
		to.Ranks[r].Blocks = slices.Clone(to.Ranks[r].Blocks)
		for b := range to.Ranks[r].Blocks {
			block := &to.Ranks[r].Blocks[b]
			block.Ops = without(block.Ops)
		}
	}
	return &to
}

func without(ops []spec.Op) (all []spec.Op) {
	for _, o := range ops {
		if o.Kind == spec.Nop {
			continue
		}
		o.Ops = without(o.Ops)
		all = append(all, o)
	}
	return all
}

func TestFixRealPlans(t *testing.T) {
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans in %s: %v", folder, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := plan.Load(text)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(lowering.Fix(f).Text(), f.Text()) {
			t.Errorf("%s: a plan that lacks nothing gets something", filepath.Base(name))
		}
		restored(t, filepath.Base(name), f)
	}
}

// restored checks that a plan without barriers, fixed, has no findings but those that it had with them.
func restored(t *testing.T, name string, f *spec.File) {
	t.Helper()
	had := plan.Verify(f).Findings
	fixed := lowering.Fix(bare(f))
	if err := fixed.Check(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	for _, finding := range plan.Verify(fixed).Findings {
		if !slices.ContainsFunc(had, func(h plan.Finding) bool { return h.Class == finding.Class }) {
			t.Errorf("%s: %v", name, finding)
		}
	}
	if again := lowering.Fix(fixed); !bytes.Equal(again.Text(), fixed.Text()) {
		t.Errorf("%s: fixed twice it is another", name)
	}
}

// TestFix: programs that lost their barriers get those that matter, and mean what they meant.
func TestFix(t *testing.T) {
	lacked := 0
	for seed := range uint64(300) {
		p := program(seed)
		p.Fuse = seed%2 == 0
		f := lower(t, p, seed)
		lost := bare(f)
		if missing(lost) > 0 {
			lacked++
		}
		fixed := lowering.Fix(lost)
		if err := fixed.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if n := missing(fixed); n > 0 {
			t.Fatalf("seed %d: %d barriers are missing\n%s", seed, n, fixed.Compact())
		}
		if where := plan.Same(fixed, f); where != "" {
			t.Fatalf("seed %d: it changes %s\n%s\n%s", seed, where, fixed.Compact(), f.Compact())
		}
		if again := lowering.Fix(fixed); !bytes.Equal(again.Text(), fixed.Text()) {
			t.Fatalf("seed %d: fixed twice it is another", seed)
		}
	}
	if lacked == 0 {
		t.Error("the programs show nothing")
	}
}

// TestFixMeetings: threads meet around what one of them waits for and tells.
func TestFixMeetings(t *testing.T) {
	for name, p := range map[string]*plan.Plan{"two shots": twoShot(4), "pipeline": pipeline()} {
		f, err := p.Build()
		if err != nil {
			t.Fatal(err)
		}
		if found := plan.Verify(f).Findings; len(found) > 0 {
			t.Fatalf("%s: %v", name, found)
		}
		if !slices.ContainsFunc(plan.Verify(bare(f)).Findings, func(f plan.Finding) bool { return !f.Warning }) {
			t.Errorf("%s: it needs no barriers", name)
		}
		restored(t, name, f)
	}
}

func twoShot(ranks int) *plan.Plan {
	p := plan.New("two-shot", plan.AllReduce(ranks, 1), plan.Options{InPlace: true})
	for r := range ranks {
		b := p.Rank(r).Block(0)
		own := p.Rank(r).Input().Chunk(r, 1)
		all := []plan.Chunk{own}
		var peers []*plan.Channel
		for i := 1; i < ranks; i++ {
			peers = append(peers, p.Memory(r, (r+i)%ranks))
			all = append(all, p.Rank((r+i)%ranks).Input().Chunk(r, 1))
		}
		b.RelaxedSignal(peers...)
		b.RelaxedWait(peers...)
		b.Reduce(own, all...)
		for i, c := range peers {
			b.Put(c, all[i+1], own)
		}
		b.Signal(peers...)
		b.Wait(peers...)
	}
	return p
}

// pipeline is an all-gather through scratch, window by window: block 0 puts, and block 1 copies what came.
func pipeline() *plan.Plan {
	p := plan.New("pipeline", plan.AllGather(2, 1), plan.Options{})
	rooms := []plan.Buffer{p.Rank(0).Scratch(1), p.Rank(1).Scratch(1)}
	for r := range 2 {
		begun, came := p.Memory(r, 1-r), p.Memory(r, 1-r)
		in, out := p.Rank(r).Input().Chunk(0, 1), p.Rank(r).Output()
		put, get := p.Rank(r).Block(0), p.Rank(r).Block(1)
		put.RelaxedSignal(begun)
		put.RelaxedWait(begun)
		put.Loop(64, 1, func() {
			put.Put(came, rooms[1-r].Chunk(0, 1), in)
			put.Signal(came)
		})
		get.Copy(out.Chunk(r, 1), in)
		get.Loop(64, 1, func() {
			get.Wait(came)
			get.Copy(out.Chunk(1-r, 1), rooms[r].Chunk(0, 1))
		})
	}
	return p
}

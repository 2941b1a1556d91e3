package main_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weftgo/weft/plan"
)

// Plans are verified, lowered and run from C. Those that are wrong are refused on every rank.
func TestPlans(t *testing.T) {
	const n = 3
	folder := t.TempDir()
	file := func(name string, ends bool) string {
		name = filepath.Join(folder, name)
		if err := os.WriteFile(name, twoShot(t, n, ends).Text(), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	program := compile(t, "testdata/plans.c")
	for r, o := range ranks(t, n, program, file("sum.json", true), file("hangs.json", false)) {
		if o.err != nil || o.output != "ok\n" {
			t.Errorf("rank %d of %d: %v\n%s", r, n, o.err, o.output)
		}
	}
}

// twoShot is an all-reduce in place. One that does not end waits before it signals.
func twoShot(t *testing.T, ranks int, ends bool) *plan.File {
	t.Helper()
	p := plan.New("two-shot", plan.AllReduce(ranks, 1), plan.Options{InPlace: true})
	for r := range ranks {
		b, own := p.Rank(r).Block(0), p.Rank(r).Input().Chunk(r, 1)
		var peers []*plan.Channel
		var theirs []plan.Chunk
		for i := 1; i < ranks; i++ {
			peer := (r + i) % ranks
			peers = append(peers, p.Memory(r, peer))
			theirs = append(theirs, p.Rank(peer).Input().Chunk(r, 1))
		}
		if ends {
			b.RelaxedSignal(peers...)
		}
		b.RelaxedWait(peers...)
		if !ends {
			b.RelaxedSignal(peers...)
		}
		b.Reduce(own, append([]plan.Chunk{own}, theirs...)...)
		for i, c := range peers {
			b.Put(c, theirs[i], own)
		}
		b.Signal(peers...)
		b.Wait(peers...)
	}
	f, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

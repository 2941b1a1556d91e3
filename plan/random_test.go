package plan_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// credits is a gather of one rank through scratch: one block fills it window by window, and another empties it. It may
// be ahead by some windows. If the second one begins when the first has ended, messages of more windows never end.
func credits(ahead int, late bool) *plan.Plan {
	p := plan.New("credits", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	full, empty := rank.Semaphore(0), rank.Semaphore(ahead)
	fill, drain := rank.Block(0), rank.Block(1)
	in, out, between := rank.Input().Chunk(0, 1), rank.Output().Chunk(0, 1), rank.Scratch(1).Chunk(0, 1)
	fill.Loop(4096, 1, func() {
		fill.Acquire(empty)
		fill.Copy(between, in)
		if !late {
			fill.Release(full)
		}
	})
	if late {
		fill.Release(full)
		drain.Acquire(full)
	}
	drain.Loop(4096, 1, func() {
		if !late {
			drain.Acquire(full)
		}
		drain.Copy(out, between)
		drain.Release(empty)
	})
	return p
}

// uneven is a gather of n chunks whose loops have as many windows as each other up to some size: one block fills
// scratch in windows of all chunks, and another awaits it in shorter ones of one.
func uneven(n int) *plan.Plan {
	p := plan.New("uneven", plan.AllGather(1, n), plan.Options{})
	rank := p.Rank(0)
	full, between := rank.Semaphore(0), rank.Scratch(n)
	fill, drain := rank.Block(0), rank.Block(1)
	fill.Loop(uint64(16*(64*n+1)), n, func() {
		fill.Copy(between.Chunk(0, n), rank.Input().Chunk(0, n))
		fill.Release(full)
	})
	drain.Loop(16*64, 1, func() { drain.Acquire(full) })
	drain.Copy(rank.Output().Chunk(0, n), between.Chunk(0, n))
	return p
}

// twice is a gather whose block takes a semaphore twice in one operation, which has been released once.
func twice() *plan.Plan {
	p := plan.New("twice", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	s, end := rank.Semaphore(1), rank.Semaphore(0)
	taker, giver := rank.Block(0), rank.Block(1)
	taker.Acquire(s, s)
	taker.Copy(rank.Output().Chunk(0, 1), rank.Input().Chunk(0, 1))
	taker.Release(end)
	giver.Acquire(end)
	giver.Release(s, s)
	return p
}

// section has two blocks that write the same bytes, each while it holds a lock.
func section() *plan.Plan {
	p := plan.New("section", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	lock := rank.Semaphore(1)
	for i := range 2 {
		b := rank.Block(i)
		b.Acquire(lock)
		b.Copy(rank.Output().Chunk(0, 1), rank.Input().Chunk(0, 1))
		b.Release(lock)
	}
	return p
}

// ahead is a gather whose ranks tell each other before a loop what they await in it, and in a second loop what they
// await behind it.
func ahead(signals int) *plan.Plan {
	p := plan.New("ahead", plan.AllGather(2, 1), plan.Options{})
	c := plantest.Ends(p, 2, p.Memory)
	for r := range 2 {
		b, in := p.Rank(r).Block(0), p.Rank(r).Input().Chunk(0, 1)
		to, other := c[r][1-r], p.Rank(1-r).Output()
		for range signals {
			b.RelaxedSignal(to)
		}
		b.Loop(4096, 1, func() {
			b.RelaxedWait(to)
			b.Copy(p.Rank(r).Output().Chunk(r, 1), in)
			b.Put(to, other.Chunk(r, 1), in)
		})
		b.Loop(4096, 1, func() { b.RelaxedSignal(to) })
		for range signals {
			b.RelaxedWait(to)
		}
		b.Signal(to)
		b.Wait(to)
	}
	return p
}

// chain is blocks that hand windows on, each of which may be ahead of the next, and the last one waits for the first.
func chain(blocks, ahead int) *plan.Plan {
	p := plan.New("chain", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	end := rank.Semaphore(0)
	var room []*plan.Semaphore
	for range blocks - 1 {
		room = append(room, rank.Semaphore(ahead))
	}
	for i := range blocks {
		b := rank.Block(i)
		if i == blocks-1 {
			b.Acquire(end)
		}
		b.Loop(4096, 1, func() {
			if i < blocks-1 {
				b.Acquire(room[i])
			}
			if i == 0 {
				b.Copy(rank.Output().Chunk(0, 1), rank.Input().Chunk(0, 1))
			}
			if i > 0 {
				b.Release(room[i-1])
			}
		})
		if i == 0 {
			b.Release(end)
		}
	}
	return p
}

// philosophers is blocks of which each needs two semaphores, the second one that of the next block. In one order all
// take them; otherwise the last one takes its second one first.
func philosophers(blocks int, circle bool) *plan.Plan {
	p := plan.New("philosophers", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	var forks []*plan.Semaphore
	for range blocks {
		forks = append(forks, rank.Semaphore(1))
	}
	for i := range blocks {
		b, one, two := rank.Block(i), forks[i], forks[(i+1)%blocks]
		if !circle && i == blocks-1 {
			one, two = two, one
		}
		b.Acquire(one)
		b.Acquire(two)
		if i == 0 {
			b.Copy(rank.Output().Chunk(0, 1), rank.Input().Chunk(0, 1))
		}
		b.Release(two)
		b.Release(one)
	}
	return p
}

// both is blocks that take two semaphores in one operation, whose threads come in any order.
func both() *plan.Plan {
	p := plan.New("both", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	s, t := rank.Semaphore(1), rank.Semaphore(1)
	for i := range 2 {
		b := rank.Block(i)
		b.Acquire(s, t)
		if i == 0 {
			b.Copy(rank.Output().Chunk(0, 1), rank.Input().Chunk(0, 1))
		}
		b.Release(s, t)
	}
	return p
}

// locked is many blocks that take turns, each with a part of a chunk.
func locked(blocks int) *plan.Plan {
	p := plan.New("locked", plan.AllGather(1, 1), plan.Options{})
	rank := p.Rank(0)
	lock := rank.Semaphore(1)
	for i := range blocks {
		b := rank.Block(i)
		b.Acquire(lock)
		b.Part(i, blocks).Copy(rank.Output().Chunk(0, 1), rank.Input().Chunk(0, 1))
		b.Release(lock)
	}
	return p
}

// parts copies a chunk by a group, and then as many chunks as given by a group of the same size, of which each block
// knows of the first copy what blocks of its half did. The parts of both are the same for some sizes alone.
func parts(group, chunks int) *plan.Plan {
	p := plan.New("parts", plan.AllGather(1, chunks), plan.Options{})
	rank := p.Rank(0)
	in, out, between := rank.Input(), rank.Output(), rank.Scratch(chunks)
	var all []*plan.Block
	for i := range group {
		all = append(all, rank.Block(i))
	}
	rank.Group(all, func(b *plan.Block) { b.Copy(between.Chunk(0, 1), in.Chunk(0, 1)) })
	rank.Barrier(all[:group/2]...)
	rank.Barrier(all[group/2:]...)
	last := all[group/2]
	last.Copy(between.Chunk(1, chunks-1), in.Chunk(1, chunks-1))
	all[0].Part(0, group).Copy(out.Chunk(0, chunks), between.Chunk(0, chunks))
	for i := 1; i < group; i++ {
		last.Part(i, group).Copy(out.Chunk(0, chunks), between.Chunk(0, chunks))
	}
	return p
}

// TestLockOrders has a race between blocks that exclude each other: either may come first.
func TestLockOrders(t *testing.T) {
	text := ""
	for _, x := range plan.Verify(build(t, section())).Findings {
		text += x.String() + "\n"
	}
	if want := "what their blocks compete for lets either come first"; !strings.Contains(text, want) {
		t.Errorf("nothing says %q:\n%s", want, text)
	}
}

// TestOrders has plans that are right at some sizes or in some orders, and fail at others or in others.
func TestOrders(t *testing.T) {
	for _, c := range []struct {
		name  string
		of    *plan.Plan
		class plan.Class // or none
		text  string
	}{
		{"credits", credits(3, false), 0, ""},
		{"credits of a late block", credits(3, true), plan.Deadlock, "semaphore 1 of rank 0"},
		{"many credits of a late block", credits(200, true), plan.Deadlock, "semaphore 1 of rank 0"},
		{"too many credits", credits(1000, true), plan.Undecided, "semaphore 1 of rank 0 lets a pipeline run 1000 windows " +
			"ahead, and at most 510 are looked at; begin it at less"},
		{"signals ahead", ahead(3), plan.Deadlock, "memory channel 0 of rank 0, from rank 1"},
		{"uneven windows", uneven(10), plan.Deadlock, "no operation is left that would let a block go on: rank 0, block 1, " +
			"operation 0.0 (sem_acquire) waits for a release of semaphore 0 of rank 0"},
		{"more uneven windows", uneven(40), plan.Balance, "semaphore 0 of rank 0 begins a launch at 0 and ends it at -1"},
		{"one semaphore twice", twice(), plan.Deadlock, "blocks wait for each other in a circle: rank 0, block 0, " +
			"operation 0 (sem_acquire) waits for a release of semaphore 0 of rank 0"},
		{"a chain", chain(5, 3), plan.Deadlock, "blocks wait for each other in a circle"},
		{"many ahead in a chain", chain(3, 400), plan.Deadlock, "blocks wait for each other in a circle"},
		{"many ahead in a long chain", chain(70, 500), plan.Undecided, "pipelines may run ahead of each other by 34500 " +
			"windows in all, more than can be tried, so a deadlock cannot be ruled out"},
		{"philosophers", philosophers(4, true), plan.Deadlock, "in some order of events, blocks wait for each other in a " +
			"circle: rank 0, block 0, operation 1 (sem_acquire) waits for a release of semaphore 1 of rank 0"},
		{"philosophers in order", philosophers(4, false), plan.SharedSide, "no order ends in a deadlock"},
		{"two at once", both(), plan.Deadlock, "in some order of events"},
		{"a lock", locked(29), plan.SharedSide, "no order ends in a deadlock"},
		{"parts", parts(4, 2), plan.Race, "nothing orders two operations on the same bytes"},
		{"parts of three", parts(4, 3), plan.Race, "nothing orders two operations on the same bytes"},
		{"parts of six", parts(6, 2), plan.Race, "nothing orders two operations on the same bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := build(t, c.of)
			v := plan.Verify(f)
			var said []string
			found := c.class == 0 && len(v.Findings) == 0
			for _, x := range v.Findings {
				said = append(said, x.String())
				found = found || x.Class == c.class && strings.Contains(x.String(), c.text)
			}
			if !found {
				t.Errorf("nothing says %q:\n%s", c.text, strings.Join(said, "\n"))
			}
			if c.class == plan.Undecided || strings.HasPrefix(c.name, "many") || strings.Contains(c.name, "uneven") {
				return // it takes long messages, or one of few sizes
			}
			short(t)
			failure := ""
			for seed := uint64(0); seed < 3000 && failure == "" && (v.Errors() > 0 || seed < 100); seed++ {
				failure = plan.Simulate(f, plan.Simulation{Seed: seed, Launches: 1}).Failure
			}
			if (failure == "") != (v.Errors() == 0) {
				t.Errorf("%d errors, and the simulator says %q", v.Errors(), failure)
			}
		})
	}
}

// random is a plan of one rank that gathers two chunks through scratch: of groups, pipelines with credits, locks and
// signals of which some are too few or elsewhere.
func random(r *rand.Rand, o plan.Options) (p *plan.Plan, what string) {
	chunks := 1 + r.IntN(3)
	p = plan.New("random", plan.AllGather(1, chunks), o)
	rank := p.Rank(0)
	in, out, between := rank.Input(), rank.Output(), rank.Scratch(chunks)
	n := []int{1, 2, 3, 4, 4}[r.IntN(5)] // blocks that write, and that read
	var writers, readers []*plan.Block
	for i := range n {
		writers, readers = append(writers, rank.Block(i)), append(readers, rank.Block(n+i))
	}
	credits, late := 1+r.IntN(5), r.IntN(5) == 0
	whole := r.IntN(2) == 0 // chunks at once, or one by one
	loop := r.IntN(2) == 0
	shared := r.IntN(3) == 0 // semaphores, among the blocks
	what = fmt.Sprintf("%d chunks, %d blocks, %d credits, late %t, whole %t, loop %t, shared %t", chunks, n, credits, late,
		whole, loop, shared)
	var full, empty, own, locks []*plan.Semaphore
	room := credits
	if shared {
		room *= n
	}
	for i := range n {
		if shared && i > 0 {
			full, empty = append(full, full[0]), append(empty, empty[0])
			continue
		}
		full, empty = append(full, rank.Semaphore(0)), append(empty, rank.Semaphore(room))
	}
	twice := r.IntN(2) == 0 // a pair of blocks has a second semaphore for credits
	for i := 0; twice && i < n; i++ {
		own = append(own, rank.Semaphore(credits+r.IntN(2)))
	}
	for range []int{0, 0, 0, 1, 1, 2}[r.IntN(6)] {
		locks = append(locks, rank.Semaphore(1+r.IntN(2)))
	}
	move := func(b *plan.Block, i int, dst, src plan.Buffer) {
		held := r.Perm(len(locks))
		for _, k := range held {
			b.Acquire(locks[k])
		}
		if whole {
			b.Part(i, n).Copy(dst.Chunk(0, chunks), src.Chunk(0, chunks))
		} else {
			for k := range chunks {
				b.Part(i, n).Copy(dst.Chunk(k, 1), src.Chunk(k, 1))
			}
		}
		for _, k := range held {
			b.Release(locks[k])
		}
		whole = whole != (r.IntN(12) == 0)
	}
	repeat := func(b *plan.Block, body func()) {
		if loop {
			b.Loop(4096, 1+(chunks-1)*r.IntN(2), body)
			return
		}
		body()
	}
	for i := range n {
		w, q := writers[i], readers[i]
		early := !late
		repeat(w, func() {
			w.Acquire(empty[i])
			if twice {
				w.Acquire(own[i])
			}
			move(w, i, between, in)
			if early {
				w.Release(full[i])
			}
		})
		if late {
			w.Release(full[i])
			q.Acquire(full[i])
		}
		repeat(q, func() {
			if early {
				q.Acquire(full[i])
			}
			move(q, i, out, between)
			q.Release(empty[i])
			if twice {
				q.Release(own[i])
			}
		})
	}
	return p, what
}

// short leaves the simulator out of short tests, which the race detector has: it is one goroutine. Others have what the
// verifier does at once.
func short(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the simulator is one goroutine")
	}
}

// TestRandomPlans holds that what the verifier passes runs under every schedule, whatever the size of the message.
func TestRandomPlans(t *testing.T) {
	short(t)
	plans, schedules := 300, uint64(30)
	if os.Getenv("WEFT_TEST_ALL") != "" {
		plans, schedules = 2000, 150
	}
	r := rand.New(rand.NewPCG(24, 24))
	passed, failed := 0, 0
	for range plans {
		p, what := random(r, plan.Options{})
		f := build(t, p)
		v := plan.Verify(f)
		if v.Errors() > 0 {
			failed++
			continue
		}
		passed++
		for seed := range schedules {
			if x := plan.Simulate(f, plan.Simulation{Seed: seed, Launches: 1 + int(seed%2)}); x.Failure != "" {
				t.Fatalf("%s: seed %d: %s\n%s", what, seed, x.Failure, f.Text())
			}
		}
	}
	t.Logf("%d plans pass, and %d do not", passed, failed)
	if passed < plans/8 || failed < plans/8 {
		t.Errorf("%d of %d plans pass", passed, plans)
	}
}

// TestFusedRandomPlans holds that a plan which passes does so when its operations are fused.
func TestFusedRandomPlans(t *testing.T) {
	plans := 300
	if testing.Short() {
		plans = 60
	}
	r := rand.New(rand.NewPCG(25, 25))
	passed, joined := 0, 0
	for range plans {
		p, what := random(r, plan.Options{Explicit: true})
		written := build(t, p)
		apart, fused := lowering.Fix(written), lowering.Fix(lowering.Fuse(written))
		if plan.Verify(apart).Errors() > 0 {
			continue
		}
		passed++
		if !bytes.Equal(apart.Compact(), fused.Compact()) {
			joined++
		}
		for _, x := range plan.Verify(fused).Findings {
			if !x.Warning {
				t.Fatalf("%s: fused it has %v\n%s\n%s", what, x, apart.Text(), fused.Text())
			}
		}
	}
	t.Logf("%d plans pass, of which %d have fused operations", passed, joined)
	if passed < plans/8 || joined < plans/20 {
		t.Errorf("%d of %d plans pass, and %d have fused operations", passed, plans, joined)
	}
}

// TestUndefined has a verdict say that no outputs were compared, and a reduction refused that there is not.
func TestUndefined(t *testing.T) {
	f := build(t, credits(3, false))
	if v := plan.Verify(f); !v.Compared {
		t.Error("outputs were not compared")
	}
	f.Collective = "bogus"
	if v := plan.Verify(f); v.Compared || len(v.Findings) > 0 {
		t.Errorf("compared %t, and found %v", v.Compared, v.Findings)
	}
	f = clone(t, build(t, plantest.TwoShot(2)))
	for b := range f.Ranks[0].Blocks {
		for i := range f.Ranks[0].Blocks[b].Ops {
			if op := &f.Ranks[0].Blocks[b].Ops[i]; op.Reduce != 0 {
				op.Reduce = 77
			}
		}
	}
	if err := f.Check(); err == nil || !strings.Contains(err.Error(), "no reduction has number 77") {
		t.Errorf("%v", err)
	}
}

// TestSameOfUnits compares plans whose pipelines have windows of other lengths.
func TestSameOfUnits(t *testing.T) {
	a := build(t, credits(3, false))
	b := clone(t, a)
	for i := range b.Ranks[0].Blocks {
		b.Ranks[0].Blocks[i].Ops[0].Unit = 64
	}
	if what := plan.Same(a, b) + plan.Same(b, a); what != "" {
		t.Error(what)
	}
}

// TestEndOfBuffer has the error tell of the writing, where the same operation reads, too.
func TestEndOfBuffer(t *testing.T) {
	f := clone(t, build(t, plantest.TwoShot(2)))
	for r := range f.Ranks {
		ops := &f.Ranks[r].Blocks[0].Ops
		for *ops = slices.Clone(*ops); ; {
			n := len(*ops) - 1
			if kind := (*ops)[n].Kind; kind != spec.Signal && kind != spec.Wait && kind != spec.Nop {
				break
			}
			*ops = (*ops)[:n]
		}
	}
	v := plan.Verify(f)
	for _, x := range v.Findings {
		if x.Class == plan.Lifetime && !x.Warning && !(strings.Contains(x.Text, "is written") &&
			strings.Contains(x.Events[0].Does, "writes")) {
			t.Errorf("%v", x)
		}
	}
	if v.Errors() == 0 {
		t.Errorf("%v", v.Findings)
	}
}

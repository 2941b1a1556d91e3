package optimizer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/internal/verify"
	"github.com/weftgo/weft/plan/optimizer"
	"github.com/weftgo/weft/plan/spec"
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

// optimize optimises a plan, and fails the test if what comes of it is otherwise than the plan.
func optimize(t testing.TB, f *plan.File, o optimizer.Options, schedules uint64) (*plan.File, optimizer.Report) {
	t.Helper()
	text := string(f.Text())
	better, r, err := optimizer.Optimize(context.Background(), f, o)
	if err != nil {
		t.Fatal(err)
	}
	if string(f.Text()) != text {
		t.Fatal("the plan itself has changed")
	}
	if err := better.Check(); err != nil {
		t.Fatal(err)
	}
	was, is := plan.Verify(f), plan.Verify(better)
	if is.Errors() > 0 || is.RankOrder != was.RankOrder || len(is.Findings) > len(was.Findings)*r.Instances {
		t.Errorf("findings %v become %v, rank order %t becomes %t", was.Findings, is.Findings, was.RankOrder, is.RankOrder)
	}
	if what := verify.Alike(f, better); what != "" {
		t.Errorf("another result: %s", what)
	}
	for seed := range schedules {
		if r := plan.Simulate(better, plan.Simulation{Seed: seed}); r.Failure != "" {
			t.Errorf("seed %d: %s", seed, r.Failure)
			break
		}
	}
	if !r.Measured && r.After.Time > r.Before.Time {
		t.Errorf("it takes %v, and took %v", r.After.Time, r.Before.Time)
	}
	return better, r
}

// schedules is how many a test tries.
func schedules(few uint64) uint64 {
	if os.Getenv("WEFT_TEST_ALL") != "" {
		return 1000
	}
	return few
}

// generous is time that no machine needs: where it is over, results differ.
const generous = 10 * time.Minute

func TestOurPlans(t *testing.T) {
	removed, joined, moved := 0, 0, 0
	for _, p := range plantest.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			f := build(t, p.Build())
			_, r := optimize(t, f, optimizer.Options{Instances: 2, Time: generous, Bytes: 64 << 10}, schedules(20))
			removed, joined, moved = removed+r.Removed.Total(), joined+r.Joined, moved+len(r.Moves)
		})
	}
	if removed == 0 || joined == 0 || moved == 0 {
		t.Errorf("%d synchronisations removed, %d operations joined, %d moved", removed, joined, moved)
	}
}

// TestRealPlans optimises the plans of another project's package that the folder WEFT_PLANS has.
func TestRealPlans(t *testing.T) {
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans in %s: %v", folder, err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := plan.Load(text)
			if err != nil {
				t.Fatal(err)
			}
			_, r := optimize(t, f, optimizer.Options{Instances: 2, Time: generous}, schedules(100))
			t.Logf("%+v", r)
		})
	}
}

// planted is a plan with synchronisation that it does not need: a signal and a wait of each rank on channels that
// nothing else uses, a semaphore and a barrier of its first and its last block, and nops around everything.
func planted(f *plan.File) (with *plan.File, signals, semaphores, barriers int) {
	with, err := spec.Decode(f.Compact())
	if err != nil {
		panic(err)
	}
	n := len(with.Ranks)
	for r := range with.Ranks {
		rank := &with.Ranks[r]
		first, last := &rank.Blocks[0], &rank.Blocks[len(rank.Blocks)-1]
		to := func(peer int) (local int) {
			i := slices.IndexFunc(rank.Channels, func(c spec.Channels) bool { return c.Type == spec.Memory })
			if i < 0 {
				i = len(rank.Channels)
				rank.Channels = append(rank.Channels, spec.Channels{Type: spec.Memory})
			}
			rank.Channels[i].Peers = append(rank.Channels[i].Peers, peer)
			return len(rank.Channels[i].Peers) - 1
		}
		next, previous := to((r+1)%n), to((r+n-1)%n)
		if n == 2 && r == 1 {
			next, previous = previous, next // the k-th channel pairs with the k-th
		}
		middle := len(first.Ops) / 2
		first.Ops = slices.Insert(first.Ops, middle, spec.Op{
			Kind: spec.Signal, Via: spec.Memory, Channels: []int{spec.Use(&first.Channels, spec.Memory, next)},
		})
		wait := spec.Op{
			Kind: spec.Wait, Via: spec.Memory, Channels: []int{spec.Use(&last.Channels, spec.Memory, previous)},
		}
		last.Ops = append(last.Ops, wait)
		signals++
		if first != last {
			id := len(rank.Semaphores)
			rank.Semaphores = append(rank.Semaphores, 0)
			first.Ops = append(first.Ops, spec.Op{Kind: spec.SemRelease, Semaphores: []int{id}})
			last.Ops = append(last.Ops, spec.Op{Kind: spec.SemAcquire, Semaphores: []int{id}})
			semaphores++
			for _, b := range []*spec.Block{first, last} {
				b.Ops = append(b.Ops, spec.Op{Kind: spec.Barrier, Barrier: 1000, Blocks: 2})
			}
			barriers++
		}
		for b := range rank.Blocks {
			ops := []spec.Op{{Kind: spec.Nop}}
			for _, op := range rank.Blocks[b].Ops {
				ops = append(ops, op, spec.Op{Kind: spec.Nop})
			}
			rank.Blocks[b].Ops = ops
		}
	}
	return with, signals, semaphores, barriers
}

// TestPlanted plants synchronisation that a plan does not need. All of it goes, and nothing of the plan's own that
// stays without it.
func TestPlanted(t *testing.T) {
	for _, p := range plantest.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			o := optimizer.Options{Time: generous, Moves: -1}
			clean, _ := optimize(t, build(t, p.Build()), o, 0)
			f, signals, semaphores, barriers := planted(clean)
			better, r := optimize(t, f, o, schedules(10))
			if r.Removed.Signals < signals || r.Removed.Semaphores < semaphores || r.Removed.Barriers < barriers {
				t.Errorf("of %d signals, %d semaphores and %d barriers it removed %+v", signals, semaphores, barriers, r.Removed)
			}
			for rank := range better.Ranks {
				for b := range better.Ranks[rank].Blocks {
					got, want := better.Ranks[rank].Blocks[b].Ops, clean.Ranks[rank].Blocks[b].Ops
					if text, was := kinds(got), kinds(want); text != was {
						t.Errorf("rank %d, block %d: it is\n%s\nand was\n%s", rank, b, text, was)
					}
				}
			}
		})
	}
}

// kinds is what operations are, in any order: of several nops that would do, one stays.
func kinds(ops []spec.Op) string {
	var all []string
	for _, op := range ops {
		all = append(all, strings.TrimSpace(op.Kind.String()+" "+kinds(op.Ops)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestEqual optimises what cannot be improved: it is the plan itself.
func TestEqual(t *testing.T) {
	for _, f := range []*plan.File{
		build(t, plantest.TwoShot(3)), build(t, plantest.Ring(3)), build(t, plantest.OneShotPackets(3, plan.Sum)),
	} {
		better, r := optimize(t, f, optimizer.Options{Time: generous}, 0)
		changes := r.Removed.Total() + r.Joined + len(r.Moves) + r.Instances - 1
		if better != f || r.Before != r.After || changes > 0 || r.Stopped {
			t.Errorf("%s: %+v", f.Name, r)
		}
	}
}

// TestCautious has all ranks of an all-reduce meet between its sums and its puts. They need not, and then each sum and
// its puts are one operation, as the builder makes it.
func TestCautious(t *testing.T) {
	twoShot := func(cautious bool) *plan.File {
		const ranks = 3
		p := plan.New("two-shot", plan.AllReduce(ranks, 1), plan.Options{InPlace: true})
		ends := plantest.Ends(p, ranks, p.Memory)
		for r := range ranks {
			b, own, peers := p.Rank(r).Block(0), p.Rank(r).Input().Chunk(r, 1), plantest.Others(ends[r], r)
			var theirs []plan.Chunk
			for i := range peers {
				theirs = append(theirs, p.Rank((r+i+1)%ranks).Input().Chunk(r, 1))
			}
			b.Signal(peers...)
			b.Wait(peers...)
			b.Reduce(own, append([]plan.Chunk{own}, theirs...)...)
			if cautious {
				b.Signal(peers...)
				b.Wait(peers...)
			}
			for i, c := range peers {
				b.Put(c, theirs[i], own)
			}
			b.Signal(peers...)
			b.Wait(peers...)
		}
		return build(t, p)
	}
	better, r := optimize(t, twoShot(true), optimizer.Options{Time: generous}, schedules(20))
	if r.Removed.Signals != 6 || r.Joined != 3 || string(better.Text()) != string(twoShot(false).Text()) {
		t.Errorf("%+v\n%s", r, better.Text())
	}
}

// TestBits keeps operations apart whose sums would round otherwise as one, and joins those whose bits stay.
func TestBits(t *testing.T) {
	sums := func(reduction spec.Reduction) *plan.File {
		p := plan.New("sums", plan.Custom("sums", 1, 4, 1), plan.Options{Explicit: true, Reduction: reduction})
		in, out := p.Rank(0).Input(), p.Rank(0).Output().Chunk(0, 1)
		b := p.Rank(0).Block(0)
		b.Copy(out, in.Chunk(0, 1))
		for i := 1; i < 4; i++ {
			b.Reduce(out, out, in.Chunk(i, 1))
		}
		return build(t, p)
	}
	if _, r := optimize(t, sums(plan.Sum), optimizer.Options{Time: generous}, 5); r.Joined > 0 {
		t.Errorf("sums are joined, and round once: %+v", r)
	}
	p := plan.New("copies", plan.Custom("copies", 1, 4, 4), plan.Options{Explicit: true})
	for i := range 4 {
		p.Rank(0).Block(0).Copy(p.Rank(0).Output().Chunk(i, 1), p.Rank(0).Input().Chunk(i, 1))
	}
	if f, r := optimize(t, build(t, p), optimizer.Options{Time: generous}, 5); r.Joined != 3 || r.After.Operations != 1 {
		t.Errorf("four copies of chunks behind each other: %+v\n%s", r, f.Text())
	}
}

// TestSeeds: one seed gives one plan.
func TestSeeds(t *testing.T) {
	f := build(t, plantest.TwoPhasePackets(3))
	for seed := range uint64(3) {
		o := optimizer.Options{Seed: seed, Instances: 2, Time: generous}
		a, first := optimize(t, f, o, 5)
		b, second := optimize(t, f, o, 0)
		if string(a.Text()) != string(b.Text()) || first.Proofs != second.Proofs {
			t.Errorf("seed %d: %+v and %+v", seed, first, second)
		}
	}
}

func TestTopology(t *testing.T) {
	f := build(t, plantest.Ring(4))
	near := optimizer.DefaultModel(4)
	near.Topology = cost.Ring(4, 100, 0.5)
	_, r := optimize(t, f, optimizer.Options{Model: near, Time: generous, Instances: 4}, schedules(20))
	if r.After.Time >= r.Before.Time || r.Instances < 2 {
		t.Errorf("instances do not make a ring faster: %+v", r)
	}
	o := optimizer.Options{Model: cost.Model{Topology: cost.Ring(3, 1, 1)}}
	if _, _, err := optimizer.Optimize(context.Background(), f, o); err == nil ||
		!strings.Contains(err.Error(), "4 ranks, and the topology 3") {
		t.Errorf("a topology of other ranks: %v", err)
	}
}

func TestRefused(t *testing.T) {
	f := build(t, plantest.TwoShot(3))
	bad, err := spec.Decode(f.Compact())
	if err != nil {
		t.Fatal(err)
	}
	ops := &bad.Ranks[1].Blocks[0].Ops
	*ops = (*ops)[:len(*ops)-1]
	if _, _, err := optimizer.Optimize(context.Background(), bad, optimizer.Options{}); err == nil ||
		!strings.Contains(err.Error(), "the verifier finds: error: ") {
		t.Errorf("a plan with errors: %v", err)
	}
	bad.Ranks[0].Input = -1
	if _, _, err := optimizer.Optimize(context.Background(), bad, optimizer.Options{}); err == nil {
		t.Error("a plan that breaks a rule is optimised")
	}
	if _, _, err := optimizer.Optimize(context.Background(), f, optimizer.Options{Instances: -1}); err == nil {
		t.Error("-1 instances")
	}
}

// TestStops ends searches by their time, and by their context.
func TestStops(t *testing.T) {
	f, _, _, _ := planted(build(t, plantest.Ring(8)))
	better, r := optimize(t, f, optimizer.Options{Time: time.Nanosecond}, 0)
	if better != f || !r.Stopped {
		t.Errorf("without time: %+v", r)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	if _, _, err := optimizer.Optimize(ctx, f, optimizer.Options{}); !errors.Is(err, why) {
		t.Errorf("a context that has ended: %v", err)
	}
	ctx, cancel = context.WithCancelCause(context.Background())
	o := optimizer.Options{Time: generous, Measure: func(context.Context, []*plan.File, int) ([]time.Duration, error) {
		cancel(why)
		return nil, why
	}}
	if _, _, err := optimizer.Optimize(ctx, f, o); !errors.Is(err, why) {
		t.Errorf("a context that ends on the way: %v", err)
	}
}

// TestMeasured takes times that a test makes, and those of ranks of this process.
func TestMeasured(t *testing.T) {
	f := build(t, plantest.TwoPhasePackets(3))
	fewer := func(_ context.Context, plans []*plan.File, _ int) (all []time.Duration, err error) {
		for _, p := range plans {
			n := time.Duration(0)
			for r := range p.Ranks {
				n += time.Duration(len(p.Ranks[r].Blocks))
			}
			all = append(all, n*time.Microsecond)
		}
		return all, nil
	}
	_, r := optimize(t, f, optimizer.Options{Measure: fewer, Time: generous}, schedules(20))
	if r.After.Blocks >= r.Before.Blocks || r.After.Time >= r.Before.Time || !r.Measured {
		t.Errorf("fewer blocks are faster, and it gives %+v", r)
	}
	f = build(t, plantest.TwoShot(2))
	_, r = optimize(t, f, optimizer.Options{Measure: executor.Measure, Bytes: 4096, Time: generous}, 5)
	if r.Before.Time <= 0 || r.After.Time <= 0 || r.Bytes != 4096 {
		t.Errorf("measured: %+v", r)
	}
}

// Any plan that is right comes back right, and the same in what it leaves.
func FuzzOptimize(f *testing.F) {
	for _, p := range plantest.Programs() {
		with, _, _, _ := planted(build(f, p.Build()))
		f.Add(with.Compact(), uint64(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		if len(text) > 1<<14 {
			return
		}
		file, err := plan.Load(text)
		if err != nil || len(file.Ranks) > 8 {
			return
		}
		for r := range file.Ranks {
			if rank := &file.Ranks[r]; rank.Input+rank.Output+rank.Scratch > 1<<8 {
				return // it takes long
			}
		}
		if plan.Verify(file).Errors() > 0 {
			return
		}
		o := optimizer.Options{Seed: seed, Instances: 2, Bytes: 4096, Time: 2 * time.Second}
		if _, _, err := optimizer.Optimize(context.Background(), file, o); err != nil {
			return // the model refuses it
		}
		optimize(t, file, o, 4)
	})
}

package plan_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

// clone copies a plan by its text.
func clone(t testing.TB, f *plan.File) *plan.File {
	t.Helper()
	c, err := spec.Decode(f.Compact())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mutate changes one thing in a plan and says what, or nothing where it found nothing to change.
func mutate(f *plan.File, random *rand.Rand) string {
	r := &f.Ranks[random.IntN(len(f.Ranks))]
	if len(r.Blocks) == 0 {
		return ""
	}
	b := &r.Blocks[random.IntN(len(r.Blocks))]
	ops := &b.Ops
	if len(*ops) == 0 {
		return ""
	}
	if i := random.IntN(len(*ops)); (*ops)[i].Kind == spec.Pipeline && len((*ops)[i].Ops) > 0 {
		ops = &(*ops)[i].Ops
	}
	i := random.IntN(len(*ops))
	op := &(*ops)[i]
	name := op.Kind.String()
	step := 1 - 2*random.IntN(2)
	switch random.IntN(11) {
	case 0:
		*ops = slices.Delete(*ops, i, i+1)
		return "delete " + name
	case 1:
		if i+1 < len(*ops) && (*ops)[i].Kind != (*ops)[i+1].Kind {
			text := "swap " + name + " and " + (*ops)[i+1].Kind.String()
			(*ops)[i], (*ops)[i+1] = (*ops)[i+1], (*ops)[i]
			return text
		}
	case 2:
		if len(op.Src) > 0 {
			op.Src[random.IntN(len(op.Src))].Index += step
			return "move a source of " + name
		}
	case 3:
		if len(op.Dst) > 0 {
			op.Dst[random.IntN(len(op.Dst))].Index += step
			return "move a destination of " + name
		}
	case 4:
		if len(op.Channels) > 0 {
			op.Channels[random.IntN(len(op.Channels))] += step
			return "another channel of " + name
		}
		if len(op.Semaphores) > 0 {
			op.Semaphores[0] += step
			return "another semaphore of " + name
		}
	case 5:
		*ops = slices.Insert(*ops, i, *op)
		return "repeat " + name
	case 6:
		if k := random.IntN(max(1, len(op.Src))); len(op.Src) > 0 {
			for _, s := range op.Src {
				if s != op.Src[k] && s.At == op.Src[k].At {
					op.Src[k] = s
					return "one source twice in " + name
				}
			}
		}
	case 7:
		if op.Group.Size > 1 {
			op.Group.ID = (op.Group.ID + 1) % op.Group.Size
			return "another part of " + name
		}
		if len(op.Dst) > 0 && op.Dst[0].At == spec.RemoteBuffer {
			op.Dst[0].ID += step
			return "another buffer of " + name
		}
	case 9:
		if len(r.Semaphores) > 0 {
			r.Semaphores[random.IntN(len(r.Semaphores))] += 1 + random.IntN(3)
			return "more credits"
		}
	case 10:
		if len(op.Src) == 1 && len(op.Dst) == 1 && op.Src[0].Size+step > 0 {
			op.Src[0].Size += step
			op.Dst[0].Size += step
			return "another size of " + name
		}
	case 8:
		switch op.Kind {
		case spec.Signal:
			op.Kind = spec.Wait
		case spec.Wait:
			op.Kind = spec.Signal
		case spec.Barrier:
			op.Blocks += step
		case spec.SemAcquire:
			op.Kind = spec.SemRelease
		default:
			return ""
		}
		return "turn " + name
	}
	return ""
}

// corpus is our programs, and the plans of the folder that WEFT_PLANS names where there is one.
func corpus(t testing.TB) (names []string, files []*plan.File) {
	t.Helper()
	for _, p := range plantest.Programs() {
		names, files = append(names, p.Name), append(files, build(t, p.Build()))
	}
	if os.Getenv("WEFT_PLANS") != "" {
		for name, text := range realTexts(t, "*.json") {
			f, err := plan.Load(text)
			if err != nil {
				t.Fatal(err)
			}
			names, files = append(names, name), append(files, f)
		}
	}
	return names, files
}

// harmless are the kinds of mutations that the verifier may pass, and why plans are right with them.
var harmless = []struct{ kind, why string }{
	{"delete nop", "the threads keep their bytes, and nothing but the launch's end follows, or packets do not need it"},
	{"delete ", "what it moves is there already, as in a plan whose input is in place, or nothing reads it"},
	{"repeat ", "nothing changes its sources between, and packets are the same"},
	{"swap ", "they touch different bytes, or are a signal and a wait that other signals make harmless"},
	{"move a ", "it is a slot, which both sides use the same way, or what nothing reads"},
	{"another channel ", "both sides use it the same way, or nothing else does"},
	{"another size ", "what it moves more nothing reads, or the block overwrites it later"},
	{"more credits", "a block runs further ahead of another, and other synchronisation keeps the bytes that both use"},
}

// TestMutations changes one thing at a time in plans that are right. What the verifier finds nothing in must be of a
// kind that is known to be harmless, and run as before under every schedule that is tried.
func TestMutations(t *testing.T) {
	short(t)
	mutations, schedules := 500, 20
	if os.Getenv("WEFT_TEST_ALL") != "" {
		schedules = 1000
	}
	names, files := corpus(t)
	var before []int
	for _, f := range files {
		before = append(before, len(plan.Verify(f).Findings))
	}
	random := rand.New(rand.NewPCG(24, 11))
	done, unflagged := 0, make(map[string]int)
	for done < mutations {
		i := random.IntN(len(files))
		f := clone(t, files[i])
		what := mutate(f, random)
		if what == "" {
			continue
		}
		done++
		v := plan.Verify(f)
		if v.Errors() > 0 || len(v.Findings) > before[i] {
			continue
		}
		known := false
		for _, h := range harmless {
			if known = strings.HasPrefix(what, h.kind); known {
				unflagged[h.kind+": "+h.why]++
				break
			}
		}
		if !known {
			t.Errorf("%s: %s: the verifier passes it, and nothing says why\n%s", names[i], what, difference(files[i], f))
		}
		for seed := range uint64(schedules) {
			if r := plan.Simulate(f, plan.Simulation{Seed: seed}); r.Failure != "" {
				t.Errorf("%s: %s: seed %d: %s\n%s", names[i], what, seed, r.Failure, difference(files[i], f))
				break
			}
		}
	}
	n := 0
	for why, k := range unflagged {
		t.Logf("%d x %s", k, why)
		n += k
	}
	t.Logf("%d of %d mutations are not flagged, and ran %d schedules each", n, mutations, schedules)
}

// difference is the operations in which two plans differ.
func difference(a, b *plan.File) string {
	for r := range a.Ranks {
		for k := range a.Ranks[r].Blocks {
			x, y := a.Ranks[r].Blocks[k].Ops, b.Ranks[r].Blocks[k].Ops
			for i := range min(len(x), len(y)) {
				if fmt.Sprint(x[i]) != fmt.Sprint(y[i]) {
					return fmt.Sprintf("rank %d, block %d, operation %d: %v becomes %v", r, k, i, x[i], y[i])
				}
			}
			if len(x) != len(y) {
				return fmt.Sprintf("rank %d, block %d: %d operations become %d", r, k, len(x), len(y))
			}
		}
	}
	return ""
}

// TestDefects deletes every operation of our plans in turn. Where some schedule then fails, the defect is real, and the
// verifier must find it.
func TestDefects(t *testing.T) {
	short(t)
	seeds := uint64(6)
	if os.Getenv("WEFT_TEST_ALL") != "" {
		seeds = 300
	}
	real, warned := 0, 0
	for _, p := range plantest.Programs() {
		f := build(t, p.Build())
		for k := range f.Ranks[0].Blocks {
			for i := range f.Ranks[0].Blocks[k].Ops {
				bad := clone(t, f)
				b := &bad.Ranks[0].Blocks[k]
				name := b.Ops[i].Kind.String()
				b.Ops = slices.Delete(b.Ops, i, i+1)
				failure := ""
				for seed := uint64(0); seed < seeds && failure == ""; seed++ {
					failure = plan.Simulate(bad, plan.Simulation{Seed: seed}).Failure
				}
				if failure == "" {
					continue
				}
				real++
				v := plan.Verify(bad)
				switch {
				case len(v.Findings) == 0:
					t.Errorf("%s, without operation %d (%s) of block %d: nothing is found; %s", p.Name, i, name, k, failure)
				case v.Errors() == 0:
					warned++
				}
			}
		}
	}
	t.Logf("%d real defects, of which %d give warnings alone", real, warned)
	if real < 100 {
		t.Errorf("%d real defects are too few", real)
	}
}

// Any text is refused, or is a plan that can be verified and drawn. If nothing is found in it, it runs.
func FuzzVerify(f *testing.F) {
	for _, p := range plantest.Programs() {
		f.Add(build(f, p.Build()).Compact())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<14 {
			return
		}
		file, err := plan.Load(text)
		if err != nil {
			return
		}
		for _, r := range file.Ranks {
			if r.Input+r.Output+r.Scratch > 1<<10 {
				return // it takes long
			}
		}
		v := plan.Verify(file)
		if err := plan.Draw(io.Discard, file); err != nil {
			t.Fatal(err)
		}
		if len(v.Findings) > 0 {
			return
		}
		for seed := range uint64(4) {
			if r := plan.Simulate(file, plan.Simulation{Seed: seed}); r.Failure != "" {
				t.Fatalf("seed %d: %s", seed, r.Failure)
			}
		}
	})
}

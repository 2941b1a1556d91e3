package synthesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
	"github.com/weftgo/weft/plan/synthesis"
)

// all says whether tests may take minutes.
var all = os.Getenv("WEFT_TEST_ALL") != ""

// topologies are those that plans are made for, of so many ranks.
func topologies(n int) map[string]*cost.Topology {
	return map[string]*cost.Topology{
		"all to all": cost.AllToAll(n, 60, 1), "ring": cost.Ring(n, 50, 1), "two hosts": cost.TwoHosts(n, 60, 1, 50, 5),
		"one broken link": cost.AllToAll(n, 60, 1).Without(0, 1),
	}
}

// outcome is what a search has given.
type outcome struct {
	file   *plan.File
	report synthesis.Report
}

// made keeps outcomes, since a search takes a second and several tests look at the same plan.
var made = make(map[string]outcome)

// synthesize makes a plan, or fails the test. It checks what holds for all plans. Short tests, which the race detector
// has, make none.
func synthesize(t testing.TB, s synthesis.Spec) (*plan.File, synthesis.Report) {
	t.Helper()
	if testing.Short() {
		t.Skip("a search is one goroutine")
	}
	same := s
	same.Topology = nil
	if same.Collective != spec.Broadcast {
		same.Root = 0
	}
	key := fmt.Sprintf("%+v on %+v", same, *s.Topology)
	if f, ok := made[key]; ok {
		return f.file, f.report
	}
	f, r, err := synthesis.Synthesize(t.Context(), s)
	if err != nil {
		t.Fatalf("%s of %d bytes: %v", s.Collective, s.Bytes, err)
	}
	made[key] = outcome{f, r}
	if n := r.Verdict.Errors(); n > 0 || s.RankOrder && !r.Verdict.RankOrder {
		t.Errorf("%s of %d bytes: %d errors, rank order %t", s.Collective, s.Bytes, n, r.Verdict.RankOrder)
	}
	for _, x := range r.Verdict.Findings {
		if x.Class != plan.Limits { // of another executor
			t.Errorf("%s of %d bytes: %v", s.Collective, s.Bytes, x)
		}
	}
	onLinks(t, f, s.Topology)
	c, err := cost.Model{Topology: s.Topology}.Of(f, s.Bytes)
	if err != nil || c.Time != r.Cost.Time {
		t.Errorf("%s of %d bytes: %v us, and the report says %v; %v", s.Collective, s.Bytes, c.Time, r.Cost.Time, err)
	}
	if c.Time < r.Bound.Time()*(1-1e-9) {
		t.Errorf("%s of %d bytes: %v us, below the bound %v", s.Collective, s.Bytes, c.Time, r.Bound)
	}
	return f, r
}

// onLinks has nothing that a plan sends, data or signals, leave the links.
func onLinks(t testing.TB, f *plan.File, top *cost.Topology) {
	t.Helper()
	links := make(map[[2]int]bool)
	for _, l := range top.Working() {
		links[[2]int{l.From, l.To}] = true
	}
	for r := range f.Ranks {
		rank := &f.Ranks[r]
		for b := range rank.Blocks {
			block := &rank.Blocks[b]
			var visit func(op *spec.Op)
			visit = func(op *spec.Op) {
				for i := range op.Ops {
					visit(&op.Ops[i])
				}
				to := make(map[int]bool)
				if op.Kind == spec.Signal || op.Kind == spec.RelaxedSignal {
					for _, c := range op.Channels {
						to[rank.Peers(op.Via)[block.Channel(op.Via, c)]] = true
					}
				}
				for _, p := range slices.Concat(op.Src, op.Dst) {
					if p.At == spec.RemoteBuffer {
						to[rank.Remotes[block.Remote(op.Via, p.ID)].Rank] = true
					}
				}
				for peer := range to {
					if !links[[2]int{r, peer}] || slices.ContainsFunc(op.Src, func(p spec.Place) bool { return p.At != spec.Local }) {
						t.Errorf("rank %d, block %d: %v to rank %d, to which no link leads", r, b, op.Kind, peer)
					}
				}
			}
			for i := range block.Ops {
				visit(&block.Ops[i])
			}
		}
	}
}

// simulate runs a plan under several orders of events: up to 100, and fewer if it is large.
func simulate(t testing.TB, f *plan.File) {
	t.Helper()
	ops, budget := 1, 8_000
	if all {
		budget *= 10
	}
	for _, r := range f.Ranks {
		for _, b := range r.Blocks {
			ops += len(b.Ops)
			for _, o := range b.Ops {
				ops += len(o.Ops)
			}
		}
	}
	for seed := range uint64(min(max(budget/ops, 1), 100)) {
		if r := plan.Simulate(f, plan.Simulation{Seed: seed}); r.Failure != "" {
			t.Fatalf("%s: seed %d: %s", f.Name, seed, r.Failure)
		}
	}
}

// TestBounds has plans of 4 to 16 ranks within a tenth of the bound: of latency at 1 KiB, of bandwidth at 256 MiB.
func TestBounds(t *testing.T) {
	ranks := []int{4, 8}
	if all {
		ranks = []int{2, 5, 8, 16}
	}
	for _, n := range ranks {
		for name, top := range topologies(n) {
			if n%2 == 1 && name == "two hosts" || n == 2 && name == "one broken link" {
				continue
			}
			for _, c := range synthesis.Collectives {
				if (n == 16 || !all && n == 8) && c != spec.AllReduce {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%s", name, n, c), func(t *testing.T) {
					sizes := []int{1 << 10, 256 << 20}
					if !all && n == 8 { // whose small ones take longest; four ranks have them
						sizes = sizes[1:]
					}
					for _, bytes := range sizes {
						f, r := synthesize(t, synthesis.Spec{Collective: c, Topology: top, Bytes: bytes})
						t.Logf("%d bytes: %.2f us, %.3f times the bound: %s; %d tried", r.Bytes, r.Cost.Time,
							r.Cost.Time/r.Bound.Time(), r.Form, r.Tried)
						if r.Cost.Time > 1.1*r.Bound.Time() {
							t.Errorf("%d bytes: %.2f us, and the bound is %.2f: %s", bytes, r.Cost.Time, r.Bound.Time(), r.Form)
						}
						simulate(t, f)
					}
				})
			}
		}
	}
}

// TestBrokenLink has plans of 1 MiB within a tenth of the bound where a link is broken in one direction: they send
// before ranks are known to have begun.
func TestBrokenLink(t *testing.T) {
	for _, n := range []int{4, 8} {
		top := cost.AllToAll(n, 50, 1)
		i := slices.IndexFunc(top.Links, func(l cost.Link) bool { return l.From == 0 && l.To == 1 })
		top.Links[i].GBps = 0
		for _, c := range synthesis.Collectives {
			if !all && n == 8 && c != spec.AllReduce {
				continue
			}
			f, r := synthesize(t, synthesis.Spec{Collective: c, Topology: top, Bytes: 1 << 20})
			if r.Cost.Time > 1.1*r.Bound.Time() {
				t.Errorf("%s of %d ranks: %.2f us, and the bound is %.2f: %s", c, n, r.Cost.Time, r.Bound.Time(), r.Form)
			}
			if !f.DoubleScratch {
				t.Errorf("%s of %d ranks: scratch has no second half", c, n)
			}
			simulate(t, f)
		}
	}
}

// TestShipped has no plan worse than one that was written by hand.
func TestShipped(t *testing.T) {
	type shipped struct {
		plan *plan.Plan
		top  *cost.Topology
	}
	var plans []shipped
	ranks, sizes := []int{4}, []int{1 << 10, 64 << 10, 1 << 20, 64 << 20}
	if all {
		ranks = []int{2, 4, 8}
	}
	for _, n := range ranks {
		for _, top := range topologies(n) {
			if n == 2 {
				top = cost.AllToAll(2, 60, 1)
			}
			for _, p := range []*plan.Plan{
				plantest.TwoShot(n), plantest.TwoShotApart(n), plantest.OneShotApart(n), plantest.OneShotPackets(n, plan.Sum),
				plantest.TwoPhasePackets(n), plantest.Switched(n, true), plantest.Switched(n, false),
				plantest.Gather(n, true), plantest.Gather(n, false), plantest.Pulled(n), plantest.Forward(n, false),
				plantest.Forward(n, true), plantest.Pipelined(n),
			} {
				plans = append(plans, shipped{p, top})
			}
			if n > 2 {
				for _, p := range []*plan.Plan{
					plantest.Hierarchical(2, n/2, 1, 1), plantest.Hierarchical(2, n/2, 2, 2), plantest.Ring(n),
					plantest.RingOfSums(n),
				} {
					plans = append(plans, shipped{p, top})
				}
			}
		}
	}
	for _, p := range plans {
		f, err := p.plan.Build()
		if err != nil {
			t.Fatal(err)
		}
		for _, bytes := range sizes {
			c, err := cost.Model{Topology: p.top}.Of(f, bytes)
			if err != nil {
				t.Fatal(err)
			}
			_, r := synthesize(t, synthesis.Spec{Collective: f.Collective, Topology: p.top, Bytes: bytes})
			if r.Cost.Time > c.Time*(1+1e-9) {
				t.Errorf("%s of %d ranks and %d bytes: %.3f us, and %q takes %.3f", f.Collective, len(f.Ranks), bytes, r.Cost.Time,
					f.Name, c.Time)
			}
		}
	}
}

// TestHosts has hosts exchange their sums where that is fast, and no others do.
func TestHosts(t *testing.T) {
	three := &cost.Topology{Ranks: 6} // hosts of ranks 0 and 3, 1 and 4, 2 and 5
	for a := range 6 {
		for b := range 6 {
			l := cost.Link{From: a, To: b, GBps: 60, Us: 1}
			if a%3 != b%3 {
				l.GBps, l.Us = 50, 5
			}
			if a != b && (a%3 == b%3 || a/3 == b/3) {
				three.Links = append(three.Links, l)
			}
		}
	}
	two := cost.TwoHosts(4, 60, 1, 50, 5)
	for _, x := range []struct {
		name      string
		top       *cost.Topology
		exchanges bool
	}{
		{"two hosts", two, true},
		{"three hosts", three, true},
		{"all to all", cost.AllToAll(4, 60, 1), false},
		{"a broken link between hosts", two.Without(0, 2), false},
		{"a broken link within one", two.Without(0, 1), false},
	} {
		if !all && x.name != "two hosts" && x.name != "a broken link between hosts" {
			continue // a search takes seconds
		}
		f, r := synthesize(t, synthesis.Spec{Collective: spec.AllReduce, Topology: x.top, Bytes: 96 << 10})
		if got := strings.Contains(r.Form, "hosts exchange sums"); got != x.exchanges {
			t.Errorf("%s: %s", x.name, r.Form)
		}
		simulate(t, f)
	}
}

// TestRankOrder has sums in the order of ranks where they take another way than the shortest.
func TestRankOrder(t *testing.T) {
	for _, c := range []string{spec.AllReduce, spec.ReduceScatter} {
		for _, bytes := range []int{1 << 10, 16 << 20} {
			f, _ := synthesize(t, synthesis.Spec{Collective: c, Topology: cost.Ring(5, 50, 1), Bytes: bytes, RankOrder: true})
			simulate(t, f)
		}
	}
}

// TestTopologies has plans for whatever is connected, by links of one direction, too.
func TestTopologies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	n := 8
	if all {
		n = 60
	}
	for range n {
		top := &cost.Topology{Ranks: 1 + random.IntN(6)}
		order := random.Perm(top.Ranks)
		links := make(map[[2]int]bool)
		for i, r := range order {
			links[[2]int{r, order[(i+1)%len(order)]}] = true
		}
		for range random.IntN(2 * top.Ranks) {
			links[[2]int{random.IntN(top.Ranks), random.IntN(top.Ranks)}] = true
		}
		for a := range top.Ranks {
			for b := range top.Ranks {
				if a != b && links[[2]int{a, b}] {
					top.Links = append(top.Links, cost.Link{
						From: a, To: b, GBps: float64(1 + random.IntN(4)), Us: float64(random.IntN(3)),
					})
				}
			}
		}
		for _, c := range synthesis.Collectives {
			f, _ := synthesize(t, synthesis.Spec{
				Collective: c, Topology: top, Bytes: 1 << random.IntN(24), Root: random.IntN(top.Ranks),
				RankOrder: random.IntN(2) == 0, Seed: random.Uint64(),
			})
			simulate(t, f)
		}
	}
}

// TestUnevenGroups has a plan where faster links would group ranks unevenly.
func TestUnevenGroups(t *testing.T) {
	top := &cost.Topology{Ranks: 3, Links: []cost.Link{
		{From: 0, To: 1, GBps: 7, Us: 0.3},
		{From: 1, To: 0, GBps: 13, Us: 2},
		{From: 1, To: 2, GBps: 3.3, Us: 5},
		{From: 2, To: 1, GBps: 11, Us: 1},
		{From: 0, To: 2, GBps: 1.7, Us: 9},
		{From: 2, To: 0, GBps: 50, Us: 0.1},
	}}
	f, _ := synthesize(t, synthesis.Spec{Collective: spec.AllReduce, Topology: top, Bytes: 1 << 10})
	simulate(t, f)
	// The link from rank 0 to rank 2 has a larger latency than the way by rank 1, and is needed for its bandwidth.
	_, r := synthesize(t, synthesis.Spec{Collective: spec.AllGather, Topology: top, Bytes: 64 << 20})
	for _, l := range r.Cost.Links {
		if l.From == 0 && l.To == 2 && l.Bytes == 0 {
			t.Error("the link from rank 0 to rank 2 carries nothing")
		}
	}
	if r.Cost.Time > 1.1*r.Bound.Time() {
		t.Errorf("%.2f us, and the bound is %.2f: %s", r.Cost.Time, r.Bound.Time(), r.Form)
	}
}

// TestSame has one plan for one spec.
func TestSame(t *testing.T) {
	s := synthesis.Spec{Collective: spec.AllReduce, Topology: cost.Ring(4, 50, 1), Bytes: 1 << 20, Seed: 7, Name: "mine"}
	a, _ := synthesize(t, s)
	b, _, err := synthesis.Synthesize(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if string(a.Text()) != string(b.Text()) || a.Name != "mine" {
		t.Errorf("two plans, %s and %s", a.Name, b.Name)
	}
}

func TestRefusals(t *testing.T) {
	apart := cost.AllToAll(2, 60, 1).Without(0, 1)
	for _, x := range []struct {
		spec synthesis.Spec
		want string
	}{
		{synthesis.Spec{Collective: "gossip", Topology: cost.Ring(4, 1, 1), Bytes: 1}, `no plan is made for "gossip"`},
		{synthesis.Spec{Collective: spec.AllGather, Bytes: 1}, "no topology"},
		{synthesis.Spec{Collective: spec.AllGather, Topology: cost.Ring(4, 1, 1)}, "a message of 0 bytes"},
		{synthesis.Spec{Collective: spec.AllGather, Topology: cost.Ring(17, 1, 1), Bytes: 1}, "17 ranks; plans are made for"},
		{synthesis.Spec{Collective: spec.Broadcast, Topology: cost.Ring(4, 1, 1), Bytes: 1, Root: 4}, "root 4; ranks are"},
		{synthesis.Spec{Collective: spec.AllReduce, Topology: cost.Ring(4, 1, 1), Bytes: 1, Time: -1}, "a search of -1ns"},
		{synthesis.Spec{Collective: spec.AllReduce, Topology: apart, Bytes: 1}, "no links lead from rank 0 to rank 1"},
		{synthesis.Spec{Collective: spec.AllReduce, Topology: &cost.Topology{}, Bytes: 1}, "0 ranks"},
	} {
		_, _, err := synthesis.Synthesize(t.Context(), x.spec)
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
}

// TestCancelled ends a search.
func TestCancelled(t *testing.T) {
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	s := synthesis.Spec{Collective: spec.AllReduce, Topology: cost.Ring(16, 50, 1), Bytes: 1 << 20}
	if _, _, err := synthesis.Synthesize(ctx, s); !errors.Is(err, reason) {
		t.Errorf("%v", err)
	}
}

// TestTime gives what was found when the time is over.
func TestTime(t *testing.T) {
	top := &cost.Topology{Ranks: 16} // a ring of one direction
	for r := range 16 {
		top.Links = append(top.Links, cost.Link{From: r, To: (r + 1) % 16, GBps: 50, Us: 1})
	}
	s := synthesis.Spec{Collective: spec.AllReduce, Topology: top, Bytes: 1 << 20, Time: time.Nanosecond}
	f, r := synthesize(t, s)
	if !r.Cut || r.Tried != 1 {
		t.Errorf("%d plans were scheduled, and the search was cut: %t", r.Tried, r.Cut)
	}
	simulate(t, f)
	s = synthesis.Spec{Collective: spec.AllGather, Topology: cost.AllToAll(4, 50, 1), Bytes: 1 << 20, Time: time.Hour}
	if _, r := synthesize(t, s); r.Cut {
		t.Error("a search that ended by itself says that it was cut")
	}
}

// onHosts is two hosts whose links between them are for ports.
func onHosts(n int) *cost.Topology {
	t := cost.TwoHosts(n, 60, 1, 50, 5)
	for r := range n {
		t.Hosts = append(t.Hosts, r/(n/2))
	}
	return t
}

// TestPorts: what crosses between the hosts that a topology names goes through ports, and all else does not.
func TestPorts(t *testing.T) {
	sizes := []int{1 << 10, 1 << 20}
	if all {
		sizes = []int{1 << 10, 16 << 10, 256 << 10, 4 << 20, 256 << 20}
	}
	tops := []*cost.Topology{onHosts(4)}
	if all {
		tops = append(tops, onHosts(8), onHosts(8).Without(0, 4), onHosts(2))
		ring := cost.Ring(6, 50, 1)
		ring.Hosts = []int{0, 0, 1, 1, 2, 2}
		tops = append(tops, ring)
	}
	for _, top := range tops {
		for _, c := range synthesis.Collectives {
			for _, bytes := range sizes {
				for _, ordered := range []bool{false, true} {
					f, _ := synthesize(t, synthesis.Spec{Collective: c, Topology: top, Bytes: bytes, RankOrder: ordered})
					for r := range f.Ranks {
						for _, via := range []spec.ChannelType{spec.Memory, spec.Port} {
							for _, peer := range f.Ranks[r].Peers(via) {
								if top.Far(r, peer) != (via == spec.Port) {
									t.Errorf("%s of %d bytes: a %v channel from rank %d to rank %d", c, bytes, via, r, peer)
								}
							}
						}
					}
				}
			}
		}
	}
}

package cost_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

func build(t testing.TB, p *plan.Plan) *plan.File {
	t.Helper()
	f, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestParse has texts come back the same, and refusals name what is wrong.
func TestParse(t *testing.T) {
	for _, x := range []*cost.Topology{
		cost.AllToAll(4, 60, 1), cost.Ring(5, 25, 2), cost.Ring(2, 25, 2), cost.TwoHosts(8, 60, 1, 50, 5),
		cost.AllToAll(3, 60, 1).Without(0, 2), cost.AllToAll(1, 1, 1),
	} {
		again, err := cost.Parse(x.Text())
		if err != nil || string(again.Text()) != string(x.Text()) {
			t.Errorf("%v, %s", err, x.Text())
		}
	}
	const link = `{"from": 0, "to": 1, "gbps": 1, "us": 1}`
	for text, want := range map[string]string{
		`{}`:                          `"ranks" is missing`,
		`{"ranks": 0, "links": []}`:   "0 ranks; want 1 to",
		`{"ranks": 2, "links": []} 1`: "more behind",
		`{"ranks": 2, "wires": []}`:   `unknown field "wires"`,
		`{"ranks": 2, "links": [{"from": 0, "to": 1, "gbps": 1}]}`:                     `link 0: want "from", "to"`,
		`{"ranks": 2, "links": [{"from": 0, "to": 1, "gbps": 1, "us": 1, "hops": 1}]}`: `link 0: json: unknown field "hops"`,
		`{"ranks": 2, "links": [{"from": 0, "to": 2, "gbps": 1, "us": 1}]}`:            "to rank 2; ranks are 0 to 1",
		`{"ranks": 2, "links": [{"from": 1, "to": 1, "gbps": 1, "us": 1}]}`:            "link 0 leads from rank 1 to itself",
		`{"ranks": 2, "links": [{"from": 0, "to": 1, "gbps": -1, "us": 1}]}`:           "link 0 has -1 GB/s",
		`{"ranks": 2, "links": [{"from": 0, "to": 1, "gbps": 1, "us": -1}]}`:           "link 0 has a latency of -1 us",
		`{"ranks": 2, "links": [` + link + `, ` + link + `]}`:                          "link 1 is another one from rank 0",
		`{"ranks": 2, "hosts": [0, -1], "links": []}`:                                  "rank 1 is on host -1; hosts are",
		`{"ranks": 2, "hosts": [0], "links": []}`:                                      "hosts of 1 ranks; want one for each",
		`{"ranks": 2, "links": [{"from": 0.5, "to": 1, "gbps": 1, "us": 1}]}`:          "link 0",
	} {
		if _, err := cost.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	err := cost.AllToAll(2, 1, 1).Without(0, 1).Connected()
	if err == nil || !strings.Contains(err.Error(), "no links lead from rank 0 to rank 1") {
		t.Errorf("ranks apart: %v", err)
	}
}

// near compares times.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9+want*1e-9 {
		t.Errorf("%s: %v us, want %v", what, got, want)
	}
}

// TestTimes has plans whose times a person can compute: 1 GB/s moves 1000 bytes in a microsecond.
func TestTimes(t *testing.T) {
	of := func(p *plan.Plan, m cost.Model, bytes int) cost.Cost {
		t.Helper()
		c, err := m.Of(build(t, p), bytes)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const mega = 16 << 16 // and no chunk is rounded
	us := float64(mega) / 1e3
	all := func(n int) cost.Model { return cost.Model{Topology: cost.AllToAll(n, 1, 2)} }
	// A handshake, then the chunks go to each peer one after the other, and the last one's signal arrives with it.
	near(t, "gather by put", of(plantest.Gather(4, false), all(4), mega).Time, 2+us/4+2)
	near(t, "gather by get", of(plantest.Gather(4, true), all(4), mega).Time, 2+2*2+us/4+2)
	// Two steps in a ring of 3: each a chunk and a latency.
	near(t, "ring", of(plantest.Ring(3), all(3), mega/16*3*16).Time, 2+2*(us+2))
	// Packets have twice the bytes, and need no handshake.
	near(t, "one-shot packets", of(plantest.OneShotPackets(2, plan.Sum), all(2), mega).Time, 2*us+2)
	// Each link has a part of an input that is read, and one that is written back.
	c := of(plantest.TwoShot(4), all(4), mega)
	for _, l := range c.Links {
		near(t, "bytes of a link", l.Bytes, mega/4*2)
	}
	// A ring has no links across: those messages take two.
	c = of(plantest.Gather(4, false), cost.Model{Topology: cost.Ring(4, 1, 2)}, mega)
	if fmt.Sprint(c.Detours) != "[[0 2] [1 3] [2 0] [3 1]]" {
		t.Errorf("detours %v", c.Detours)
	}
	total := 0.0
	for _, l := range c.Links {
		total += l.Bytes
	}
	near(t, "bytes of all links", total, mega/4*(4*2+4*2))
	// Far packets come later than near ones, and do not hold up who waits for these.
	far := cost.AllToAll(3, 1, 2)
	for i, l := range far.Links {
		if l.From == 0 {
			far.Links[i].Us = 1e6
		}
	}
	near(t, "packets of two latencies", of(passedOn(), cost.Model{Topology: far}, mega).Time, 2*us+1e6)
	// What blocks take themselves.
	m := all(2)
	m.Op = 10
	free := of(plantest.Gather(2, false), all(2), 32).Time
	slow := of(plantest.Gather(2, false), m, 32).Time
	if slow < free+40 {
		t.Errorf("operations of 10 us: %v us, and %v us if they are free", slow, free)
	}
	m = all(2)
	m.CopyGBps = 0.5
	// A copy of the own chunk, the put's reading beside its link, and the copy out of scratch: at 500 bytes in 1 us.
	near(t, "copies", of(plantest.Pipelined(2), m, 32).Time-of(plantest.Pipelined(2), all(2), 32).Time,
		0.064+(0.032-0.016)+0.064)
}

// TestPrograms has every operation cost something, and no plan beat a bound.
func TestPrograms(t *testing.T) {
	for _, p := range append(plantest.Programs(), plantest.Larger()...) {
		f := build(t, p.Build())
		n := len(f.Ranks)
		for _, top := range []*cost.Topology{cost.AllToAll(n, 60, 1), cost.Ring(n, 25, 1)} {
			for _, bytes := range []int{0, 1, 1 << 10, 1 << 20} {
				c, err := cost.Model{Topology: top}.Of(f, bytes)
				if err != nil {
					t.Fatalf("%s: %v", p.Name, err)
				}
				if f.Collective == spec.SendRecv {
					continue
				}
				bound, err := cost.BoundOf(f.Collective, top, bytes, 0)
				if err != nil {
					t.Fatal(err)
				}
				if c.Time < bound.Time()*(1-1e-9) {
					t.Errorf("%s of %d bytes takes %v us, and its bound is %v", p.Name, bytes, c.Time, bound)
				}
			}
		}
	}
}

// TestBounds has those that a person can compute.
func TestBounds(t *testing.T) {
	const s = 1 << 20
	us := float64(s) / 1e3
	for _, x := range []struct {
		collective string
		top        *cost.Topology
		latency    float64
		bandwidth  float64
	}{
		{spec.AllGather, cost.AllToAll(8, 1, 2), 2, us/8 + 2},
		{spec.ReduceScatter, cost.AllToAll(8, 1, 2), 2, us/8 + 2},
		{spec.AllReduce, cost.AllToAll(8, 1, 2), 2, 2*us/8 + 2},
		{spec.AllToAll, cost.AllToAll(8, 1, 2), 2, us/8 + 2},
		{spec.Broadcast, cost.AllToAll(8, 1, 2), 2, us/7 + 2 + 2*6.0/7},
		{spec.AllGather, cost.Ring(8, 1, 2), 8, us*7/16 + 2},
		{spec.AllReduce, cost.Ring(8, 1, 2), 8, us*7/8 + 2},
		{spec.AllToAll, cost.Ring(8, 1, 2), 8, us + 2},
		{spec.AllReduce, cost.TwoHosts(8, 100, 1, 1, 5), 6, us/4 + 5},
		{spec.AllGather, cost.TwoHosts(8, 100, 1, 1, 5), 6, us/8 + 5},
		{spec.AllGather, cost.AllToAll(4, 1, 2).Without(0, 1), 4, us*3/8 + 2},
		{spec.AllReduce, cost.AllToAll(20, 1, 2), 2, 2*us/20 + 2},
	} {
		b, err := cost.BoundOf(x.collective, x.top, s, 0)
		if err != nil {
			t.Fatal(err)
		}
		near(t, x.collective+", latency", b.Latency, x.latency)
		near(t, x.collective+", bandwidth", b.Bandwidth, x.bandwidth)
	}
	for _, x := range []struct {
		collective string
		root       int
		top        *cost.Topology
		want       string
	}{
		{spec.Broadcast, 4, cost.Ring(4, 1, 1), "root 4; ranks are 0 to 3"},
		{"gossip", 0, cost.Ring(4, 1, 1), `what a "gossip" needs`},
		{spec.AllGather, 0, &cost.Topology{Ranks: 2}, "no links lead from rank 0 to rank 1"},
	} {
		if _, err := cost.BoundOf(x.collective, x.top, 1, x.root); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
}

// TestRefusals has plans that do not run on a topology.
func TestRefusals(t *testing.T) {
	stuck := build(t, plantest.Gather(2, true))
	for r := range stuck.Ranks {
		ops := stuck.Ranks[r].Blocks[0].Ops
		ops[0], ops[1] = ops[1], ops[0]
	}
	for _, x := range []struct {
		f    *plan.File
		top  *cost.Topology
		want string
	}{
		{build(t, plantest.Gather(3, true)), cost.Ring(4, 1, 1), "has 3 ranks, and the topology 4"},
		{build(t, plantest.Gather(2, true)), &cost.Topology{Ranks: 2}, "needs a path from rank"},
		{stuck, cost.Ring(2, 1, 1), "waits for what never comes"},
	} {
		if _, err := (cost.Model{Topology: x.top}).Of(x.f, 64); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
}

// passedOn has rank 0 send packets to rank 1, and rank 2 others, which rank 1 sends back.
func passedOn() *plan.Plan {
	p := plan.New("passed on", plan.Custom("passes", 3, 1, 1), plan.Options{Protocol: plan.LL})
	c := plantest.Ends(p, 3, p.Memory)
	back, slots := p.Rank(2).Scratch(1), p.Rank(1).Scratch(2)
	in := func(r int) plan.Chunk { return p.Rank(r).Input().Chunk(0, 1) }
	p.Rank(0).Block(0).PutPackets(c[0][1], slots.Chunk(0, 1), in(0))
	p.Rank(1).Block(0).UnpackPackets(p.Rank(1).Output().Chunk(0, 1), slots.Chunk(0, 1))
	p.Rank(1).Block(1).ReadPutPackets(c[1][2], back.Chunk(0, 1), slots.Chunk(1, 1))
	p.Rank(2).Block(0).PutPackets(c[2][1], slots.Chunk(1, 1), in(2))
	p.Rank(2).Block(1).UnpackPackets(p.Rank(2).Output().Chunk(0, 1), back.Chunk(0, 1))
	return p
}

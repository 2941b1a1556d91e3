package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// GPUs holds the results of a benchmark on GPUs: its rows, and the figures of other libraries.
type GPUs struct {
	Rows  []benchep.GPURow
	Peers []bench.Peer
}

// along is the quantity on a plot's axis.
type along struct {
	name, axis string
	key, at    func(*benchep.GPURow) int // the requested value, and its place on the axis
	peer       func(*bench.Peer) int
}

var (
	byTokens = &along{
		"tokens", "tokens per rank", func(r *benchep.GPURow) int { return r.Tokens },
		func(r *benchep.GPURow) int { return r.Tokens },
		func(p *bench.Peer) int { return p.Tokens },
	}
	bySMs = &along{
		"SMs", "multiprocessors asked for", func(r *benchep.GPURow) int { return r.SMs },
		func(r *benchep.GPURow) int { return cmp.Or(r.SMs, r.SMsUsed) },
		func(p *bench.Peer) int { return p.SMs },
	}
)

// several says whether rows differ in it.
func (a *along) several(rows []benchep.GPURow) bool {
	return slices.ContainsFunc(rows, func(r benchep.GPURow) bool { return a.key(&r) != a.key(&rows[0]) })
}

// plots draws the time and the bandwidth of every operation: the measurement, the floor or the ceiling of the
// links in the run, and other libraries.
func (g *GPUs) plots() []Plot {
	axes := []*along{byTokens}
	if bySMs.several(g.Rows) {
		axes = []*along{bySMs}
		if byTokens.several(g.Rows) {
			axes = append(axes, byTokens)
		}
	}
	var ops []string
	for _, r := range g.Rows {
		if !slices.Contains(ops, r.Op) {
			ops = append(ops, r.Op)
		}
	}
	var all []Plot
	for _, op := range ops {
		for _, a := range axes {
			all = append(all, g.time(op, a), g.bandwidth(op, a))
		}
	}
	return all
}

// lines collects series by name.
type lines []Series

func (l *lines) add(name string, p Point) {
	i := slices.IndexFunc(*l, func(s Series) bool { return s.Name == name })
	if i < 0 {
		i = len(*l)
		*l = append(*l, Series{Name: name})
	}
	(*l)[i].Points = append((*l)[i].Points, p)
}

// limits makes floors or ceilings of lines, each of the series of its name.
func (l lines) limits() []Series {
	all := slices.Clone(l)
	for i := range all {
		all[i].Of, all[i].Name, all[i].Points = all[i].Name, "limit of "+all[i].Name, medians(all[i].Points)
	}
	return all
}

// beside joins the measurements, their limits and the lines of others; equal lines are drawn once.
func (l lines) beside(limits []Series, others lines) []Series {
	for i := range l {
		l[i].Points = medians(l[i].Points)
	}
	for _, o := range others {
		o.Dashed, o.Points = true, medians(o.Points)
		if !slices.ContainsFunc(l, func(s Series) bool { return s.Dashed && slices.Equal(s.Points, o.Points) }) {
			l = append(l, o)
		}
	}
	return append(l, limits...)
}

// quantity is the same for sentences.
func (a *along) quantity() quantity {
	noun := strings.TrimSuffix(a.name, "s")
	return quantity{say: func(v float64) string { return measure.Count(int(v), noun) }}
}

// eachRow calls f for the rows of an operation, with their place on the axis, and the properties
// beside their contract that distinguish rows at one place.
func (g *GPUs) eachRow(op string, a *along, f func(r *benchep.GPURow, x float64, but string)) {
	for i := range g.Rows {
		r := &g.Rows[i]
		if r.Op != op {
			continue
		}
		but := ""
		if a != byTokens && byTokens.several(g.Rows) {
			but = ", " + measure.Count(r.Tokens, "token")
		}
		if a != bySMs && bySMs.several(g.Rows) {
			but = ", " + measure.Count(bySMs.at(r), "SM")
		}
		f(r, float64(a.at(r)), but)
	}
}

// time draws an operation's time.
func (g *GPUs) time(op string, a *along) Plot {
	var ours, floors, others lines
	g.eachRow(op, a, func(r *benchep.GPURow, x float64, but string) {
		ours.add(r.Contract+but, Point{X: x, Y: r.P50, High: r.P99})
		if r.WireBytes == 0 {
			return
		}
		rows := r.DType + " rows"
		switch op {
		case "combine", "dispatch-backward":
			rows = r.Reduction + " sums"
		case "combine-backward":
			rows = "gradients"
		}
		floors.add(r.Contract+but, Point{X: x, Y: r.Floor})
		if a == bySMs {
			rows += but
		}
		for _, p := range g.Peers {
			if p.Date == "" && p.Skipped == "" && alike(p.WireBytes, r.WireBytes) {
				others.add(fmt.Sprintf("%s, in this run, as many bytes as %s", p.Contract, rows), Point{X: x, Y: p.P50})
			}
		}
	})
	for i := range g.Peers {
		// Whether a quoted dispatch knew its routing is not known: it stands beside both of ours.
		if p := &g.Peers[i]; p.Op == strings.TrimSuffix(op, "-known") && g.comparable(p, a) {
			others.add(fmt.Sprintf("%s, quoted of %s", p.Contract, p.Date), Point{X: float64(a.peer(p)), Y: p.P50})
		}
	}
	all := ours.beside(floors.limits(), others)
	return Plot{
		Title: op + ": time by " + a.name, X: a.axis,
		Y:      "time in a graph, in us: the median, and a whisker to the 99th percentile",
		Limits: "floor: the links' time for the same bytes, in this run",
		Series: all, Says: saysTime(op, a.quantity(), ours, floors.limits()),
	}
}

// bandwidth draws an operation's bandwidth on the links.
func (g *GPUs) bandwidth(op string, a *along) Plot {
	var ours, ceilings lines
	g.eachRow(op, a, func(r *benchep.GPURow, x float64, but string) {
		if r.WireBytes > 0 {
			ours.add(r.Contract+but, Point{X: x, Y: r.GBps})
			ceilings.add(r.Contract+but, Point{X: x, Y: r.LinkGBps})
		}
	})
	all := ours.beside(ceilings.limits(), nil)
	return Plot{
		Title: op + ": bandwidth by " + a.name, X: a.axis, Y: "GB/s to other ranks",
		Limits: "ceiling: kernels of as many SMs on the links, in this run",
		Series: all, Says: saysRate(a.quantity(), ours, ceilings.limits(), true),
	}
}

// comparable says whether a quoted figure belongs beside the rows: of as many ranks, and as many
// tokens and SMs as some of them, where that is known and not on the axis.
func (g *GPUs) comparable(p *bench.Peer, a *along) bool {
	return p.Date != "" && slices.ContainsFunc(g.Rows, func(r benchep.GPURow) bool {
		return p.Ranks == r.Ranks && (a == byTokens || p.Tokens == r.Tokens) && (a == bySMs || p.SMs == 0 || p.SMs == r.SMs)
	})
}

// alike says whether a peer sent as many bytes, which it may have rounded.
func alike(a, b int64) bool { return math.Abs(float64(a-b)) <= 0.01*float64(b) }

// tables lists everything.
func (g *GPUs) tables() []Table {
	rows := Table{
		Title: "All rows",
		Note:  "All times are of the slowest rank of each replay or sample. Bytes are of one rank, in the mean.",
		Columns: columns("!contract", "!op", "#tokens", "#capacity: tokens that the handle takes", "#SMs asked",
			"#used: SMs that the kernel runs on",
			"!#p50 us: in a graph of many operations that begins on all GPUs together, the median of replays",
			"#p99: the same, the 99th percentile", "#GB/s: 10^9 bytes a second: wire over p50",
			"#floor us: the links' time for wire, at the bandwidth of kernels of as many SMs, all to all, in this run",
			"#ratio: floor over p50; 1 is the speed of the links", "!output: verified in this run or not",
			"#min: as p50, the fastest replay", "#max: as p50, the slowest",
			"#ungated: as p50, but GPUs begin as their hosts launch", "#alone: a graph of one operation, between two events",
			"#alone p99", "#eager: without a graph, until the host sees the end", "#issue: of eager, the call alone",
			"#cold: in a graph, with caches emptied before each", "#wire: bytes that leave the rank",
			"#logical: a token counted once for each rank that it visits",
			"#per selection: every (token, expert) pair counted, the rank's own included",
			"#links: their bandwidth in this run, which gives the floor"),
	}
	for _, r := range g.Rows {
		if rows.Checked++; !r.Verified {
			rows.Wrong++
		}
		row := append(cells(r.Contract, r.Op, r.Tokens, r.Capacity, r.SMs, r.SMsUsed, r.P50, r.P99, r.GBps, r.Floor,
			r.FloorRatio), verified(r.Verified, r.Problems...))
		rows.Rows = append(rows.Rows, append(row, cells(r.Min, r.Max, r.Ungated, r.Kernel, r.KernelP99, r.Eager, r.Issue,
			r.Cold, r.WireBytes, r.LogicalBytes, r.DeepEPBytes, r.LinkGBps)...))
	}
	peers := Table{
		Title:   "Other libraries",
		Columns: columns("!library", "!op", "#ranks", "#tokens", "#bytes to other ranks", "#SMs", "#us", "!measured"),
	}
	for _, p := range g.Peers {
		peers.Rows = append(peers.Rows, append(cells(p.Contract, p.Op, p.Ranks, p.Tokens, p.WireBytes, p.SMs,
			p.P50), g.origin(p, &peers)))
	}
	rows.condense()
	peers.condense()
	return []Table{rows, peers}
}

// origin says where a peer's figure is from.
func (g *GPUs) origin(p bench.Peer, t *Table) Cell {
	switch {
	case p.Skipped != "":
		return Cell{Text: "skipped: " + p.Skipped, Class: "soft"}
	case p.Date != "":
		return Cell{Text: fmt.Sprintf("quoted, not measured here: %s, %s", p.Date, p.Source), Class: "soft"}
	}
	if t.Checked++; p.Verified == nil || !*p.Verified {
		t.Wrong++
		return Cell{Text: "in this run: wrong", Class: "bad"}
	}
	return Cell{Text: "in this run, verified", Class: "good"}
}

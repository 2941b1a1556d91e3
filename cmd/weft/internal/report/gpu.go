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

// plots draws the time and the bandwidth of every operation: the measurement, the same bytes at the
// links' ceiling of the run, and other libraries.
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

// beside joins the measurements and the lines that they are compared with; equal lines are drawn
// once.
func (l lines) beside(others lines) []Series {
	for i := range l {
		l[i].Points = medians(l[i].Points)
	}
	for _, o := range others {
		o.Dashed, o.Points = true, medians(o.Points)
		if !slices.ContainsFunc(l, func(s Series) bool { return s.Dashed && slices.Equal(s.Points, o.Points) }) {
			l = append(l, o)
		}
	}
	return l
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
	var ours, others lines
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
		if r.LinkGBps > 0 {
			others.add("the links' ceiling for "+rows+but, Point{X: x, Y: float64(r.WireBytes) / r.LinkGBps / 1e3})
		}
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
	return Plot{
		Title: op + ": time by " + a.name, X: a.axis, Y: "time in a graph, us (p50, whisker to p99)",
		Series: ours.beside(others),
	}
}

// bandwidth draws an operation's bandwidth on the links.
func (g *GPUs) bandwidth(op string, a *along) Plot {
	var ours, others lines
	g.eachRow(op, a, func(r *benchep.GPURow, x float64, but string) {
		if r.WireBytes > 0 {
			ours.add(r.Contract+but, Point{X: x, Y: r.GBps})
			others.add("links, kernels of as many SMs"+but, Point{X: x, Y: r.LinkGBps})
		}
	})
	return Plot{Title: op + ": bandwidth by " + a.name, X: a.axis, Y: "GB/s to other ranks", Series: ours.beside(others)}
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
		Head: heads("contract", "op", "#tokens", "#capacity", "#SMs asked", "#used", "#p50 us", "#p99", "#min",
			"#max", "#ungated", "#alone", "#alone p99", "#eager", "#issue", "#cold",
			"#wire", "#logical", "#per selection", "#GB/s", "#links", "#of links", "output"),
		Note: "Times are of the slowest rank of each replay or sample: p50, p99, min and max in a graph of " +
			"many operations that begins on all GPUs together, ungated the same without that, " +
			"alone a graph of one between two events, eager without a graph until the host sees the end and " +
			"issue the call of it, cold in a graph with caches emptied before each. " +
			"Bytes are of one rank, in the mean: wire leaves the rank, logical counts a token once for each " +
			"rank that it visits, per selection counts every (token, expert) pair, the rank's own included. " +
			"GB/s is wire over p50, links is the bandwidth of kernels of as many SMs on the links, all to all, in " +
			"this run. Ceilings in plots are the wire bytes at that rate.",
	}
	for _, r := range g.Rows {
		output := Cell{Text: "verified", Class: "good"}
		if rows.Checked++; !r.Verified {
			rows.Wrong++
			output = Cell{Text: "wrong: " + strings.Join(r.Problems, "; "), Class: "bad"}
		}
		rows.Rows = append(rows.Rows, append(cells(r.Contract, r.Op, r.Tokens, r.Capacity, r.SMs, r.SMsUsed,
			r.P50, r.P99, r.Min, r.Max, r.Ungated, r.Kernel, r.KernelP99,
			r.Eager, r.Issue, r.Cold, r.WireBytes, r.LogicalBytes, r.DeepEPBytes, r.GBps, r.LinkGBps, r.Ratio), output))
	}
	peers := Table{
		Title: "Other libraries",
		Head:  heads("library", "op", "#ranks", "#tokens", "#bytes to other ranks", "#SMs", "#us", "measured"),
	}
	for _, p := range g.Peers {
		peers.Rows = append(peers.Rows, append(cells(p.Contract, p.Op, p.Ranks, p.Tokens, p.WireBytes, p.SMs,
			p.P50), g.origin(p, &peers)))
	}
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

// heads makes the heads of columns; those of numbers begin with #.
func heads(names ...string) []Cell {
	var all []Cell
	for _, name := range names {
		c := Cell{Text: strings.TrimPrefix(name, "#")}
		if c.Text != name {
			c.Class = "n"
		}
		all = append(all, c)
	}
	return all
}

// cells writes values: bytes are int64, and zero is left out.
func cells(values ...any) []Cell {
	var all []Cell
	for _, v := range values {
		c := Cell{Class: "n"}
		switch v := v.(type) {
		case string:
			c = Cell{Text: v}
		case int:
			c.Text = fmt.Sprint(v)
		case int64:
			c.Text = measure.Size(v)
		case float64:
			c.Text = fmt.Sprintf("%.4g", v)
		}
		if v == any(0) || v == any(int64(0)) || v == any(0.0) {
			c.Text = ""
		}
		all = append(all, c)
	}
	return all
}

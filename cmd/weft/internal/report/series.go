package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// dimension is one thing in which records differ.
type dimension struct {
	name  string
	value func(*measure.Record) string
}

func count(get func(*measure.Record) int, one, many string) func(*measure.Record) string {
	return func(r *measure.Record) string {
		if n := get(r); n == 1 {
			return "1 " + one
		} else {
			return fmt.Sprintf("%d %s", n, many)
		}
	}
}

var dimensions = []dimension{
	{"op", func(r *measure.Record) string { return r.Op }},
	{"engine", func(r *measure.Record) string { return r.Engine }},
	{"ranks", count(func(r *measure.Record) int { return r.Ranks }, "rank", "ranks")},
	{"tokens", count(func(r *measure.Record) int { return r.Tokens }, "token", "tokens")},
	{"bytes", func(r *measure.Record) string { return measure.Size(r.Bytes) }},
	{"hidden", func(r *measure.Record) string { return fmt.Sprintf("hidden %d", r.Hidden) }},
	{"topk", func(r *measure.Record) string { return fmt.Sprintf("top-%d", r.TopK) }},
	{"experts", count(func(r *measure.Record) int { return r.Experts }, "expert", "experts")},
	{"dtype", func(r *measure.Record) string { return r.DType }},
	{"scales", func(r *measure.Record) string {
		if r.Scales == "" {
			return ""
		}
		return r.Scales + " scales"
	}},
	{"layout", func(r *measure.Record) string { return r.Layout }},
	{"reduction", func(r *measure.Record) string { return r.Reduction }},
	{"weighting", func(r *measure.Record) string { return r.Weighting }},
	{"counts", func(r *measure.Record) string { return r.Counts + " counts" }},
	{"mode", func(r *measure.Record) string { return r.Mode }},
	{"operand", func(r *measure.Record) string { return r.Operand }},
	{"cached", func(r *measure.Record) string {
		if r.Cached {
			return "cached"
		}
		return ""
	}},
	{"fresh", func(r *measure.Record) string {
		if r.Fresh {
			return "fresh operands"
		}
		return ""
	}},
	{"batches", count(func(r *measure.Record) int { return r.Batches }, "routing", "routings")},
	{"routing", func(r *measure.Record) string { return r.Routing }},
}

// split makes a series of every group of records that differ only in along, and names it by the
// properties that distinguish the groups.
func split(records []measure.Record, along string, point func(*measure.Record) Point) []Series {
	var varying []dimension
	for _, d := range dimensions {
		if d.name == along {
			continue
		}
		for i := range records {
			if d.value(&records[i]) != d.value(&records[0]) {
				varying = append(varying, d)
				break
			}
		}
	}
	var series []Series
	index := map[string]int{}
	for i := range records {
		r := &records[i]
		var words []string
		for _, d := range varying {
			words = append(words, d.value(r))
		}
		name := strings.Join(words, ", ")
		if name == "" {
			name = r.Op
		}
		at, ok := index[name]
		if !ok {
			at = len(series)
			index[name] = at
			series = append(series, Series{Name: name})
		}
		series[at].Points = append(series[at].Points, point(r))
	}
	for i := range series {
		series[i].Points = medians(series[i].Points)
	}
	return series
}

// medians sorts points and keeps, of those that were measured several times, the one
// in the middle.
func medians(points []Point) []Point {
	slices.SortFunc(points, func(a, b Point) int { return cmp.Or(cmp.Compare(a.X, b.X), cmp.Compare(a.Y, b.Y)) })
	var out []Point
	for from, to := 0, 0; from < len(points); from = to {
		for to < len(points) && points[to].X == points[from].X {
			to++
		}
		out = append(out, points[(from+to-1)/2])
	}
	return out
}

// plots draws time and bandwidth by tokens (or by bytes, for collectives), and time by ranks, as
// far as the records have them.
func plots(records []measure.Record) []Plot {
	var ep, coll []measure.Record
	for _, r := range records {
		if r.Bytes > 0 {
			coll = append(coll, r)
		} else if r.Tokens > 0 {
			ep = append(ep, r)
		}
	}
	p50 := func(x func(*measure.Record) float64) func(*measure.Record) Point {
		return func(r *measure.Record) Point { return Point{X: x(r), Y: r.P50, High: r.P99} }
	}
	gbps := func(x func(*measure.Record) float64) func(*measure.Record) Point {
		return func(r *measure.Record) Point { return Point{X: x(r), Y: r.GBps} }
	}
	tokens := func(r *measure.Record) float64 { return float64(r.Tokens) }
	bytes := func(r *measure.Record) float64 { return float64(r.Bytes) }
	ranks := func(r *measure.Record) float64 { return float64(r.Ranks) }
	size := func(v float64) string { return measure.Size(int64(v)) }

	const time = "time, us (p50, whisker to p99)"
	var out []Plot
	if len(ep) > 0 {
		out = append(out,
			Plot{Title: "Time by tokens", X: "tokens per rank", Y: time, Series: split(ep, "tokens", p50(tokens))},
			Plot{
				Title: "Bandwidth by tokens", X: "tokens per rank", Y: "GB/s, one row per selection",
				Series: split(ep, "tokens", gbps(tokens)),
			},
			Plot{Title: "Time by ranks", X: "ranks", Y: time, Series: split(ep, "ranks", p50(ranks))})
	}
	if len(coll) > 0 {
		out = append(out,
			Plot{
				Title: "Collectives: time by size", X: "bytes per rank", Y: time, LabelX: size,
				Series: split(coll, "bytes", p50(bytes)),
			},
			Plot{
				Title: "Collectives: bandwidth by size", X: "bytes per rank",
				Y: "GB/s, bytes of a rank over time", LabelX: size, Series: split(coll, "bytes", gbps(bytes)),
			},
			Plot{Title: "Collectives: time by ranks", X: "ranks", Y: time, Series: split(coll, "ranks", p50(ranks))})
	}
	return out
}

package report

import (
	"cmp"
	"fmt"
	"math"
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
	{"bytes", func(r *measure.Record) string { return measure.Size(r.Message()) }},
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
		if r.Message() > 0 {
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
	bytes := func(r *measure.Record) float64 { return float64(r.Message()) }
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
	busbw := func(r *measure.Record) Point { return Point{X: bytes(r), Y: r.BusBW} }
	for _, group := range groups(coll) {
		title := fmt.Sprintf("%s, %s", group[0].Op, measure.Count(group[0].Ranks, "rank"))
		shaded := bands(group)
		out = append(out,
			Plot{
				Title: title + ": time by size", X: "bytes", Y: time, LabelX: size, Bands: shaded,
				Series: split(group, "bytes", p50(bytes)),
			},
			Plot{
				Title: title + ": bus bandwidth by size", X: "bytes", Y: "GB/s, as nccl-tests counts it", LabelX: size,
				Bands: shaded, Series: append(split(group, "bytes", busbw), ceiling(group)...),
			})
	}
	if len(coll) > 0 {
		out = append(out, Plot{
			Title: "Collectives: time by ranks", X: "ranks", Y: time, Series: split(coll, "ranks", p50(ranks)),
		})
	}
	return out
}

// groups are the rows of each collective and number of ranks.
func groups(coll []measure.Record) [][]measure.Record {
	var all [][]measure.Record
	for _, r := range coll {
		i := slices.IndexFunc(all, func(g []measure.Record) bool { return g[0].Op == r.Op && g[0].Ranks == r.Ranks })
		if i < 0 {
			i, all = len(all), append(all, nil)
		}
		all[i] = append(all[i], r)
	}
	return all
}

// bands are the ranges of sizes in which the library chose each algorithm.
func bands(group []measure.Record) []Band {
	ours := slices.DeleteFunc(slices.Clone(group), func(r measure.Record) bool { return r.Engine == "nccl" })
	slices.SortStableFunc(ours, func(a, b measure.Record) int { return cmp.Compare(a.Bytes, b.Bytes) })
	var all []Band
	for i := range ours {
		_, name, _ := strings.Cut(ours[i].Algorithm, "/")
		at := float64(ours[i].Bytes)
		if n := len(all); n > 0 && all[n-1].Name != name {
			all[n-1].To = math.Sqrt(all[n-1].To * at)
			all = append(all, Band{name, all[n-1].To, at})
		} else if n == 0 {
			all = []Band{{name, at, at}}
		}
		all[len(all)-1].To = at
	}
	return all
}

// ceiling is what the links, or memcpy, carry.
func ceiling(group []measure.Record) []Series {
	s := Series{Name: "ceiling of the links or of memcpy, in this run", Dashed: true}
	for i := range group {
		if c := group[i].Ceiling; c > 0 {
			s.Points = append(s.Points, Point{X: float64(group[i].Bytes), Y: c})
		}
	}
	if s.Points = medians(s.Points); len(s.Points) == 0 {
		return nil
	}
	return []Series{s}
}

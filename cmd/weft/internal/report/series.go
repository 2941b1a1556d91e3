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

// engine is what did the operation, in words.
func engine(r *measure.Record) string {
	switch r.Engine {
	case "host":
		return "Weft on the host"
	case "gpu":
		return "Weft on GPUs"
	case "nccl":
		return "NCCL"
	case "gloo":
		return "Gloo"
	}
	return r.Engine
}

var dimensions = []dimension{
	{"op", func(r *measure.Record) string { return r.Op }},
	{"engine", func(r *measure.Record) string { return engine(r) }},
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

// namer names records by their engine, and by the properties in which those of one engine differ, in any of the
// plots: so a series has the same name, and colour, in each.
type namer []dimension

// naming makes a namer, for plots of one operation each.
func naming(all []measure.Record) namer {
	var n namer
	for _, d := range dimensions {
		first := map[string]string{} // of each engine
		differ := slices.ContainsFunc(all, func(r measure.Record) bool {
			was, ok := first[r.Engine]
			if !ok {
				first[r.Engine] = d.value(&r)
			}
			return ok && d.value(&r) != was || d.name == "engine" && len(first) > 1
		})
		if d.name != "op" && differ {
			n = append(n, d)
		}
	}
	return n
}

// measured is the name of a series that needs none.
const measured = "measured"

// name is that of the series of a record, in a plot along one of the dimensions. Plots of one number of ranks say
// it in their titles.
func (n namer) name(r *measure.Record, along ...string) string {
	var words []string
	for _, d := range n {
		if w := d.value(r); w != "" && !slices.Contains(along, d.name) {
			words = append(words, w)
		}
	}
	if len(words) == 0 {
		return measured
	}
	return strings.Join(words, ", ")
}

// split makes a series of all records of one name.
func split(records []measure.Record, name func(*measure.Record) string, point func(*measure.Record) Point) []Series {
	var l lines
	for i := range records {
		l.add(name(&records[i]), point(&records[i]))
	}
	for i := range l {
		l[i].Points = medians(l[i].Points)
	}
	return l
}

// limits are series of floors or ceilings, each of the series of its name.
func limits(records []measure.Record, name func(*measure.Record) string, point func(*measure.Record) Point) []Series {
	all := split(records, name, point)
	for i := range all {
		all[i].Of, all[i].Name = all[i].Name, "limit of "+all[i].Name
	}
	return all
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

// quantity is what is on a plot's horizontal axis.
type quantity struct {
	dimension, axis string
	at              func(*measure.Record) float64
	tick            func(float64) string // nil: a number
	say             func(float64) string
}

var (
	tokens = quantity{
		"tokens", "tokens per rank", func(r *measure.Record) float64 { return float64(r.Tokens) }, nil,
		func(v float64) string { return measure.Count(int(v), "token") },
	}
	bytes = quantity{
		"bytes", "size in bytes, as nccl-tests counts it", func(r *measure.Record) float64 { return float64(r.Message()) },
		func(v float64) string {
			return strings.NewReplacer(" B", "", " KiB", "K", " MiB", "M", " GiB", "G").Replace(measure.Size(int64(v)))
		},
		func(v float64) string { return measure.Size(int64(v)) },
	}
	ranks = quantity{
		"ranks", "ranks", func(r *measure.Record) float64 { return float64(r.Ranks) }, nil,
		func(v float64) string { return measure.Count(int(v), "rank") },
	}
)

// time is a point of the time, and floor of its floor.
func (q quantity) time(r *measure.Record) Point  { return Point{X: q.at(r), Y: r.P50, High: r.P99} }
func (q quantity) floor(r *measure.Record) Point { return Point{X: q.at(r), Y: r.Floor} }

const timeAxis = "time in us: the median, and a whisker to the 99th percentile"

// plots draws every operation's time and bandwidth by tokens (or by size, for collectives), and its time by ranks
// where there are enough numbers of them, as far as the records have them.
func plots(records []measure.Record) []Plot {
	var ep, coll []measure.Record
	for _, r := range records {
		if r.Message() > 0 {
			coll = append(coll, r)
		} else if r.Tokens > 0 {
			ep = append(ep, r)
		}
	}
	var out []Plot
	n := naming(ep)
	for _, group := range groups(ep, func(r *measure.Record) string { return r.Op }) {
		out = append(out, expertPlots(n, group)...)
		out = append(out, byRanks(n, group, tokens)...)
	}
	n = naming(coll)
	for _, group := range groups(coll, func(r *measure.Record) string { return fmt.Sprint(r.Op, r.Ranks) }) {
		out = append(out, collectivePlots(n, group)...)
	}
	for _, group := range groups(coll, func(r *measure.Record) string { return r.Op }) {
		out = append(out, byRanks(n, group, bytes)...)
	}
	return out
}

// groups are the records that have the same key.
func groups(records []measure.Record, key func(*measure.Record) string) [][]measure.Record {
	var all [][]measure.Record
	for _, r := range records {
		i := slices.IndexFunc(all, func(g []measure.Record) bool { return key(&g[0]) == key(&r) })
		if i < 0 {
			i, all = len(all), append(all, nil)
		}
		all[i] = append(all[i], r)
	}
	return all
}

// expertPlots are those of dispatch, combine or prepare.
func expertPlots(n namer, group []measure.Record) []Plot {
	op := group[0].Op
	name := func(r *measure.Record) string { return n.name(r, "tokens") }
	times, floors := split(group, name, tokens.time), limits(group, name, tokens.floor)
	rate := func(r *measure.Record) Point { return Point{X: tokens.at(r), Y: r.GBps} }
	most := func(r *measure.Record) Point {
		return Point{X: tokens.at(r), Y: float64(r.DeepEPBytes) / max(r.Floor, 1e-9) / 1e3}
	}
	rates, ceilings := split(group, name, rate), limits(group, name, most)
	return []Plot{
		{
			Title: op + ": time by tokens", X: tokens.axis, Y: timeAxis, Series: slices.Concat(times, floors),
			Limits: "floor: memcpy's time for the same bytes, through cold memory",
			Says:   sentences(saysTime(op, tokens, times, floors)),
		},
		{
			Title: op + ": bandwidth by tokens", X: tokens.axis, Y: "GB/s: 10^9 bytes a second, a row per selection",
			Series: slices.Concat(rates, ceilings), Limits: "ceiling: the same bytes in the time of the floor",
			Says: saysRate(tokens, rates, ceilings, false),
		},
	}
}

// collectivePlots are those of one collective and number of ranks: our curve, peers', the floor or the ceiling,
// and which algorithm ran where.
func collectivePlots(n namer, group []measure.Record) []Plot {
	title := fmt.Sprintf("%s, %s", group[0].Op, measure.Count(group[0].Ranks, "rank"))
	name := func(r *measure.Record) string { return n.name(r, "bytes", "ranks") }
	ours := slices.DeleteFunc(slices.Clone(group), func(r measure.Record) bool { return peer(&r) })
	mine := slices.DeleteFunc(slices.Clone(ours), func(r measure.Record) bool { return name(&r) != name(&ours[0]) })
	busbw := func(r *measure.Record) Point { return Point{X: bytes.at(r), Y: r.BusBW} }
	ceiling := func(r *measure.Record) Point { return Point{X: bytes.at(r), Y: r.Ceiling} }
	times, floors := split(group, name, bytes.time), limits(mine, name, bytes.floor)
	rates, ceilings := split(group, name, busbw), limits(mine, name, ceiling)
	for i := range group {
		if peer(&group[i]) {
			dash(times, name(&group[i]))
			dash(rates, name(&group[i]))
		}
	}
	shaded, ran := bands(mine)
	return []Plot{
		{
			Title: title + ": time by size", X: bytes.axis, Y: timeAxis, LabelX: bytes.tick, Bands: shaded,
			Series: slices.Concat(times, floors), Limits: "floor: the bytes at the ceiling of memcpy or of the links",
			Says: sentences(saysTime(group[0].Op, bytes, times, floors), ran),
		},
		{
			Title: title + ": bus bandwidth by size", X: bytes.axis, Y: "busbw in GB/s, as nccl-tests counts it",
			LabelX: bytes.tick, Bands: shaded, Series: slices.Concat(rates, ceilings),
			Limits: "ceiling: memcpy for each rank, through cold memory, or the links, in this run",
			Says:   sentences(saysRate(bytes, rates, ceilings, group[0].Engine == "gpu"), ran),
		},
	}
}

// peer says whether a record is another library's.
func peer(r *measure.Record) bool { return r.Engine != "host" && r.Engine != "gpu" && r.Engine != "" }

func dash(all []Series, name string) {
	for i := range all {
		all[i].Dashed = all[i].Dashed || all[i].Name == name
	}
}

// byRanks draws an operation's time by ranks, where there are three numbers of them or more: of two, a line says
// no more than the other plots do. Few of many lines are drawn.
func byRanks(n namer, group []measure.Record, q quantity) []Plot {
	counts := map[int]bool{}
	for _, r := range group {
		counts[r.Ranks] = true
	}
	const fewest, most = 3, 5
	if len(counts) < fewest {
		return nil
	}
	all := split(group, func(r *measure.Record) string { return n.name(r, "ranks") }, ranks.time)
	var few []Series
	for i := range min(len(all), most) {
		few = append(few, all[i*(len(all)-1)/max(min(len(all), most)-1, 1)])
	}
	return []Plot{{
		Title: group[0].Op + ": time by ranks", X: ranks.axis, Y: timeAxis, Series: few,
		Says: sentences(saysTime(group[0].Op, ranks, few, nil)),
	}}
}

// bands are the ranges of sizes in which each algorithm ran, and a sentence about them. Between two sizes that
// were measured the border is in the middle.
func bands(ours []measure.Record) (all []Band, says string) {
	ours = slices.Clone(ours)
	slices.SortStableFunc(ours, func(a, b measure.Record) int { return cmp.Compare(a.Bytes, b.Bytes) })
	var ranges []string
	from := int64(0)
	for i := range ours {
		_, name, _ := strings.Cut(ours[i].Algorithm, "/")
		at := float64(ours[i].Bytes)
		if n := len(all); n > 0 && all[n-1].Name != name {
			all[n-1].To = math.Sqrt(all[n-1].To * at)
			all = append(all, Band{name, all[n-1].To, at})
		} else if n == 0 {
			all = []Band{{name, at, at}}
		}
		if all[len(all)-1].To = at; i == 0 || all[len(all)-1].From > float64(ours[i-1].Bytes) {
			from = ours[i].Bytes
		}
		if i+1 == len(ours) || !strings.HasSuffix(ours[i+1].Algorithm, "/"+name) {
			span := measure.Size(from)
			if from != ours[i].Bytes {
				span += " to " + measure.Size(ours[i].Bytes)
			}
			ranges = append(ranges, fmt.Sprintf("%s (%s)", name, span))
		}
	}
	if len(ranges) > 0 {
		says = "Shaded is which algorithm ran: " + strings.Join(ranges, ", ") + "."
	}
	return all, says
}

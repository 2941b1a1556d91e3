package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

func sweep() []measure.Record {
	var out []measure.Record
	for _, ranks := range []int{2, 4} {
		for _, tokens := range []int{1, 8, 128} {
			for _, op := range []string{"dispatch", "combine"} {
				out = append(out, measure.Record{
					Op: op, Engine: "host", Ranks: ranks, Tokens: tokens, Hidden: 7168, TopK: 8, Experts: 64, DType: "bf16",
					Layout: "expert-major", P50: float64(tokens*ranks) * 3, P99: float64(tokens*ranks) * 4, Verified: true,
				})
			}
		}
	}
	for i := range out {
		r := &out[i]
		r.DeepEPBytes, r.Floor, r.FloorRatio = int64(1000*r.Tokens*r.Ranks), r.P50/2, 0.5+float64(i)/100
		if r.GBps = 2; r.Tokens == 8 && r.Ranks == 2 {
			r.GBps = 40
		}
	}
	return append(out, measure.Record{
		Op: "allreduce", Ranks: 2, Collective: &measure.Collective{Bytes: 1 << 20, BusBW: 10}, DType: "fp32", P50: 90,
		P99: 91, GBps: 10, Verified: true,
	})
}

func TestPageIsSelfContained(t *testing.T) {
	var b strings.Builder
	r := Report{
		Title: "weft bench ep", When: time.Unix(0, 0), Command: `weft bench ep --dtype "<b>"`,
		Facts: []Fact{{"CPU", "Fast & Small <1>"}}, Records: sweep(),
	}
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	for _, bad := range []string{"http:", "https:", "<script", "<link", "@import", "url(", "<b>", "<1>"} {
		if strings.Contains(html, bad) {
			t.Errorf("page contains %q", bad)
		}
	}
	for _, want := range []string{
		"dispatch: time by tokens", "combine: bandwidth by tokens", "allreduce, 2 ranks: time by size",
		"</svg>2 ranks</li>", "</svg>4 ranks</li>", "Fast &amp; Small", "every row was verified", "1970-01-01",
		"dispatch (2 ranks) takes 6 us for 1 token and 768 us for 128 tokens, a ratio of 0.5 to the floor; (4 ranks) 12 us",
		"The most is 40 GB/s, for 8 tokens (2 ranks). Points above the dotted line", "for 128 tokens it is 2 GB/s.",
		"<th>op</th>", "In all rows: engine host, ", "hidden 7168, top-k 8, experts 64", "<dt>ratio</dt>", "<dt>busbw</dt>",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if n := strings.Count(html, "<figure>"); n != 6 {
		t.Errorf("%d plots", n)
	}
	if n := strings.Count(html, "verified</td>"); n != len(r.Records) {
		t.Errorf("%d rows", n)
	}
}

// A collective has our curve beside a peer's, below the ceiling, over the ranges of algorithms.
func TestCollectivePlots(t *testing.T) {
	var records []measure.Record
	for _, engine := range []string{"gpu", "nccl"} {
		for _, bytes := range []int64{1 << 20, 1 << 10, 16 << 10, 256 << 10} {
			name := "all-reduce/one-shot"
			if bytes > 16<<10 {
				name = "all-reduce/two-shot"
			}
			if engine == "nccl" {
				name = "NCCL all_reduce"
			}
			records = append(records, measure.Record{
				Op: "allreduce", Engine: engine, Ranks: 4, P50: 3, Collective: &measure.Collective{
					Bytes: bytes, Algorithm: name, BusBW: float64(bytes) / 3e3, Ceiling: 350,
				},
			})
		}
	}
	all := plots(records)
	if len(all) != 2 {
		t.Fatalf("%d plots", len(all))
	}
	want := []Band{{"one-shot", 1 << 10, 64 << 10}, {"two-shot", 64 << 10, 1 << 20}}
	const ran = "Shaded is which algorithm ran: one-shot (1 KiB to 16 KiB), two-shot (256 KiB to 1 MiB)."
	for _, p := range all {
		if !strings.HasSuffix(p.Says, ran) {
			t.Errorf("%q", p.Says)
		}
		if d := cmp.Diff(want, p.Bands); d != "" {
			t.Error(d)
		}
		if svg := p.SVG(palette{}); strings.Count(svg, `class="band b`) != 2 || !strings.Contains(svg, ">two-shot</text>") {
			t.Error(svg)
		}
	}
	var names []string
	for _, s := range all[1].Series {
		names = append(names, s.Name)
		if s.Dashed != (s.Name == "NCCL") || s.Of != "" != (s.Name == "limit of Weft on GPUs") {
			t.Errorf("%+v", s)
		}
	}
	if d := cmp.Diff([]string{"Weft on GPUs", "NCCL", "limit of Weft on GPUs"}, names); d != "" {
		t.Error(d)
	}
}

func TestWrongOutputIsLoud(t *testing.T) {
	records := sweep()
	records[0].Verified = false
	var b strings.Builder
	if err := Write(&b, Report{Records: records}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "1 of 13 rows gave wrong output") {
		t.Error("no warning")
	}
}

func TestSVGIsWellFormedAndInside(t *testing.T) {
	coordinate := regexp.MustCompile(`c[xy]="([-\d.]+)"`)
	rapid.Check(t, func(t *rapid.T) {
		p := Plot{Title: `a<b>&"c"`, X: "x", Y: "y"}
		for range rapid.IntRange(0, 12).Draw(t, "series") {
			s := Series{Name: rapid.StringMatching(`[a-z<&"]{0,6}`).Draw(t, "name")}
			for range rapid.IntRange(0, 5).Draw(t, "points") {
				s.Points = append(s.Points, Point{
					X: math.Pow(10, rapid.Float64Range(-3, 9).Draw(t, "x")), Y: math.Pow(10, rapid.Float64Range(-3, 9).Draw(t, "y")),
					High: rapid.Float64Range(0, 1e9).Draw(t, "high"),
				})
			}
			s.Points = append(s.Points, Point{X: 0, Y: 1}) // cannot be drawn
			p.Series = append(p.Series, s)
		}
		svg := p.SVG(palette{})
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v\n%s", err, svg)
			}
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Fatal(svg)
		}
		for _, m := range coordinate.FindAllStringSubmatch(svg, -1) {
			if strings.HasPrefix(m[1], "-") || len(m[1]) > 5 {
				t.Fatalf("a marker at %s lies outside", m[1])
			}
		}
	})
}

func TestOnePointIsDrawn(t *testing.T) {
	svg := Plot{Series: []Series{{Name: "a", Points: []Point{{X: 4, Y: 10}}}}}.SVG(palette{})
	if strings.Count(svg, "<circle") != 1 || !strings.Contains(svg, ">4</text>") || !strings.Contains(svg, ">10</text>") {
		t.Error(svg)
	}
	if svg := (Plot{}).SVG(palette{}); svg != "" {
		t.Errorf("an empty plot draws %q", svg)
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0.001: "0.001", 0.5: "0.5", 1: "1", 2.3456: "2.35", 99.96: "100",
		1234.4: "1234", 1e6: "1000000",
	} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{1e-5: "1e-05", 0.01: "0.01", 5000: "5000", 2e4: "20k", 3e6: "3M"} {
		if got := tick(v); got != want {
			t.Errorf("tick(%v) = %q, want %q", v, got, want)
		}
	}
}

// Ticks are as far from each other as their labels need, and evenly so over many decades.
func TestTicks(t *testing.T) {
	for _, hi := range []float64{1.5, 3, 30, 1e3, 1e5, 1e9, 1e15} {
		a := fit([]float64{1, hi}, 270, 26)
		if a.atRound(tick); len(a.ticks) < 2 || len(a.ticks) > 11 {
			t.Errorf("to %g: %v", hi, a.ticks)
		}
		for i := range a.ticks[1:] {
			if gap := a.pixel(a.ticks[i]) - a.pixel(a.ticks[i+1]); gap < 24 {
				t.Errorf("to %g: %g from %g to %g", hi, gap, a.ticks[i], a.ticks[i+1])
			}
			if ratio := a.ticks[i+1] / a.ticks[i]; hi >= 1e9 && math.Abs(ratio-a.ticks[1]/a.ticks[0]) > 1e-6*ratio {
				t.Errorf("to %g: %v", hi, a.ticks)
			}
		}
	}
}

func TestSeriesNamesSayWhatDiffers(t *testing.T) {
	all := sweep()[:12]
	n := naming(all)
	series := split(all, func(r *measure.Record) string { return n.name(r, "tokens") }, tokens.time)
	if len(series) != 2 || series[0].Name != "2 ranks" || len(series[0].Points) != 3 {
		t.Errorf("%+v", series)
	}
	if n = naming(all[:1]); n.name(&all[0]) != measured {
		t.Errorf("%q", n.name(&all[0]))
	}
}

// A series has the colour of its name, in whichever plots and places it is; what belongs to it has that, too.
func TestColoursFollowNames(t *testing.T) {
	line := func(name, of string) Series {
		return Series{Name: name, Of: of, Points: []Point{{X: 1, Y: 1}, {X: 2, Y: 2}}}
	}
	colours := palette{}
	first := Plot{Series: []Series{line("a", ""), line("b", "")}}.SVG(colours)
	second := Plot{Series: []Series{line("b", ""), line("floor", "b"), line("c", "")}}
	then := second.SVG(colours)
	if strings.Count(first, `<g class="c1"`) != 1 || strings.Count(then, `<g class="c1"`) != 1 ||
		strings.Count(then, `<g class="c1 limit"`) != 1 || strings.Count(then, `<g class="c2"`) != 1 {
		t.Errorf("%s%s", first, then)
	}
	if legend := second.Legend(colours); strings.Count(legend, "<li>") != 3 || strings.Contains(legend, "floor</li>") {
		t.Error(legend) // the third is that of all limits
	}
	styles := map[string]bool{}
	for i := range 3 * colors {
		s := line(strings.Repeat("x", i+1), "")
		styles[palette(colours).style(&s)] = true
	}
	if len(styles) != 3*colors {
		t.Errorf("%d styles for %d series", len(styles), 3*colors)
	}
}

// Columns that are empty or the same everywhere are out of the table; what stays is asked for.
func TestCondense(t *testing.T) {
	table := Table{
		Columns: columns("!op: what", "engine", "#ranks", "#none: nothing"),
		Rows:    [][]Cell{cells("a", "host", 2, 0), cells("a", "host", 4, 0)},
	}
	table.condense()
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name+c.Class)
	}
	if d := cmp.Diff([]string{"op", "ranksn"}, names); d != "" || table.Same != "engine host" ||
		len(table.Legend()) != 1 || len(table.Rows[1]) != 2 || table.Rows[1][1].Text != "4" {
		t.Errorf("%+v %s", table, d)
	}
	one := Table{Columns: columns("a", "b"), Rows: [][]Cell{cells("x", "")}}
	if one.condense(); len(one.Columns) != 1 || one.Same != "" {
		t.Errorf("of one row: %+v", one)
	}
}

// Time by ranks is drawn where there are three numbers of them.
func TestByRanks(t *testing.T) {
	var records []measure.Record
	for _, n := range []int{2, 4, 8} {
		for _, tokens := range []int{1, 2, 4, 8, 16, 32, 64} {
			records = append(records, measure.Record{Op: "combine", Ranks: n, Tokens: tokens, P50: float64(n * tokens)})
		}
	}
	last := func(records []measure.Record) Plot { all := plots(records); return all[len(all)-1] }
	const says = "combine (1 token) takes 2 us for 2 ranks and 8 us for 8 ranks;"
	if p := last(records); p.Title != "combine: time by ranks" || len(p.Series) != 5 || p.Series[0].Name != "1 token" ||
		p.Series[4].Name != "64 tokens" || !strings.HasPrefix(p.Says, says) {
		t.Errorf("%+v", p)
	}
	if p := last(records[:14]); p.Title != "combine: bandwidth by tokens" {
		t.Errorf("%+v", p)
	}
}

func TestRepeatedMeasurementsGiveTheirMedian(t *testing.T) {
	got := medians([]Point{{X: 2, Y: 9}, {X: 1, Y: 5}, {X: 2, Y: 1}, {X: 2, Y: 4}})
	if len(got) != 2 || got[0] != (Point{X: 1, Y: 5}) || got[1] != (Point{X: 2, Y: 4}) {
		t.Errorf("%v", got)
	}
}

// onGPUs is a run in which tokens or SMs were swept.
func onGPUs(tokens, sms []int) *GPUs {
	right := true
	g := &GPUs{Peers: []bench.Peer{
		{Op: "all-to-all", Contract: "NCCL", Ranks: 4, WireBytes: 3<<20 + 32, P50: 40, Verified: &right},
		{Op: "all-to-all", Contract: "Symmetric <memory>", Skipped: "no torch"},
		{Op: "dispatch", Contract: "Low", Ranks: 4, Tokens: 128, P50: 19.3, Date: "2026-11-20", Source: "a machine"},
		{
			Op: "dispatch", Contract: "Many", Ranks: 4, Tokens: 4096, SMs: 24, P50: 530, Date: "2026-11-20",
			Source: "another machine",
		},
		{
			Op: "dispatch", Contract: "Eight", Ranks: 8, Tokens: 4096, SMs: 24, P50: 530, Date: "2026-11-20",
			Source: "a third machine",
		},
	}}
	for _, contract := range []string{"rank-major bf16", "expert-major exact fp8 column-major from bf16"} {
		for _, n := range tokens {
			for _, on := range sms {
				for _, op := range []string{"dispatch", "dispatch-known", "prepare", "combine"} {
					r := benchep.GPURow{
						Op: op, Contract: contract, Ranks: 4, Tokens: n, Capacity: n, SMs: on,
						SMsUsed: max(on, 17), DType: "bf16", Reduction: "partial", P50: float64(n),
						P99:      float64(2 * n),
						Verified: true,
					}
					if op != "prepare" {
						r.WireBytes, r.GBps = int64(n)<<20, 100
						r.SetLink(350)
					}
					g.Rows = append(g.Rows, r)
				}
			}
		}
	}
	return g
}

func TestGPUPage(t *testing.T) {
	for _, tc := range []struct {
		name          string
		tokens, sms   []int
		plots         int
		with, without []string
		wrong         bool
	}{
		{name: "tokens", tokens: []int{1, 3, 128}, sms: []int{0}, plots: 7, with: []string{
			"dispatch: time by tokens", "combine: bandwidth by tokens", "Low, quoted of 2026-11-20",
			"NCCL, in this run, as many bytes as bf16 rows",
			"as many bytes as partial sums", "floor: the links&#39;? time",
			"The most is 100 GB/s, for 1 token \\(rank-major bf16\\). For 128 tokens it is 0.286 of the ceiling.",
			"quoted, not measured here: 2026-11-20, another machine", "every row was verified",
		}, without: []string{"by SMs", "Many, quoted of", "Eight, quoted of"}},
		{name: "SMs", tokens: []int{4096}, sms: []int{8, 24}, plots: 7, with: []string{
			"dispatch: time by SMs", "Many, quoted of 2026-11-20", "skipped: no torch",
		}, without: []string{"by tokens", "Low, quoted of", "in this run, as many bytes", "Eight, quoted of"}},
		{name: "both", tokens: []int{128, 4096}, sms: []int{0, 24}, plots: 14, with: []string{
			"rank-major bf16, 4096 tokens", "rank-major bf16, 24 SMs", "rank-major bf16, 17 SMs",
			"Low, quoted of", "Many, quoted of",
		}},
		{
			name: "wrong", tokens: []int{1}, sms: []int{8}, plots: 7, wrong: true,
			with: []string{"2 of 9 rows gave wrong output", "wrong: row 3 &lt;is&gt; not", "in this run: wrong"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := onGPUs(tc.tokens, tc.sms)
			if tc.wrong {
				g.Rows[2].Verified, g.Rows[2].Problems = false, []string{"row 3 <is> not"}
				g.Peers[0].Verified = new(bool)
			}
			var b strings.Builder
			if err := Write(&b, Report{
				Title: "weft bench", When: time.Unix(0, 0),
				Facts: []Fact{{"links", "350 GB/s"}}, GPUs: g,
			}); err != nil {
				t.Fatal(err)
			}
			page := b.String()
			for _, bad := range []string{
				"http:", "https:", "<script", "<link", "@import", "url(", "<memory>",
				"How it is counted", "NaN", "Inf",
			} {
				if strings.Contains(page, bad) {
					t.Errorf("page contains %q", bad)
				}
			}
			for _, want := range tc.with {
				if !regexp.MustCompile(strings.ReplaceAll(want, "&#39;?", "(&#39;|')")).MatchString(page) {
					t.Errorf("page lacks %q", want)
				}
			}
			for _, bad := range tc.without {
				if strings.Contains(page, bad) {
					t.Errorf("page contains %q", bad)
				}
			}
			if n, known := strings.Count(page, "</svg>Low, quoted of")+strings.Count(page,
				"</svg>Many, quoted of"), 2; !tc.wrong && n < known {
				t.Errorf("quoted figures in %d plots, want at least %d", n, known)
			}
			if n := strings.Count(page, "<figure>"); n != tc.plots {
				t.Errorf("%d plots, want %d", n, tc.plots)
			}
			if n := strings.Count(page, "verified</td>"); !tc.wrong && n != len(g.Rows)+1 {
				t.Errorf("%d rows", n)
			}
			for svg := range strings.SplitSeq(page, "<svg") {
				if body, _, ok := strings.Cut(svg, "</svg>"); ok {
					d := xml.NewDecoder(strings.NewReader("<svg" + body + "</svg>"))
					for {
						if _, err := d.Token(); errors.Is(err, io.EOF) {
							break
						} else if err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		})
	}
}

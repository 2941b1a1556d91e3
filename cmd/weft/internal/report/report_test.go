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
					Layout: "expert-major", P50: float64(tokens*ranks) * 3, P99: float64(tokens*ranks) * 4, GBps: 2, Verified: true,
				})
			}
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
		"Time by tokens", "Bandwidth by tokens", "Time by ranks", "allreduce, 2 ranks: time by size",
		"dispatch, 2 ranks", "combine, 4 ranks", "Fast &amp; Small", "every row was verified", "1970-01-01",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if n := strings.Count(html, "<svg"); n != 6 {
		t.Errorf("%d plots", n)
	}
	if n := strings.Count(html, "verified</span>"); n != len(r.Records) {
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
	if len(all) != 3 {
		t.Fatalf("%d plots", len(all))
	}
	want := []Band{{"one-shot", 1 << 10, 64 << 10}, {"two-shot", 64 << 10, 1 << 20}}
	for _, p := range all[:2] {
		if d := cmp.Diff(want, p.Bands); d != "" {
			t.Error(d)
		}
		if svg := p.SVG(); strings.Count(svg, `class="band"`) != 2 || !strings.Contains(svg, ">two-shot</text>") {
			t.Error(svg)
		}
	}
	var names []string
	for _, s := range all[1].Series {
		names = append(names, s.Name)
	}
	if d := cmp.Diff([]string{"gpu", "nccl", "ceiling of the links or of memcpy, in this run"}, names); d != "" {
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
		svg := p.SVG()
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
	svg := Plot{Series: []Series{{Name: "a", Points: []Point{{X: 4, Y: 10}}}}}.SVG()
	if strings.Count(svg, "<circle") != 1 || !strings.Contains(svg, ">4</text>") || !strings.Contains(svg, ">10</text>") {
		t.Error(svg)
	}
	if svg := (Plot{}).SVG(); svg != "" {
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
}

func TestSeriesNamesSayWhatDiffers(t *testing.T) {
	series := split(sweep()[:4], "tokens", func(r *measure.Record) Point { return Point{X: float64(r.Tokens), Y: r.P50} })
	if len(series) != 2 || series[0].Name != "dispatch" || len(series[0].Points) != 2 {
		t.Errorf("%+v", series)
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
			"as many bytes as partial sums", "the links&#39;? ceiling for bf16 rows",
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
			if n, known := strings.Count(page, ">Low, quoted of")+strings.Count(page,
				">Many, quoted of"), 2; !tc.wrong && n < known {
				t.Errorf("quoted figures in %d plots, want at least %d", n, known)
			}
			if n := strings.Count(page, "<svg"); n != tc.plots {
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

package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// synthetic is a job whose true times are known.
type synthetic struct {
	random *rand.Rand
	ranks  []syntheticRank
	files  []*File
	truth  [][]int64 // by rank: of its events
	delay  func(rank, call int) int64
}

type syntheticRank struct {
	host   string
	clock  string  // "": the host's
	offset int64   // of the clock to true time
	drift  float64 // parts of one
	set    int64   // of the host's time of day
}

// read is what a clock shows at a true time.
func (r *syntheticRank) read(at int64) uint64 {
	return uint64(at + r.offset + int64(float64(at)*r.drift))
}

const hop = 800 // the shortest

// run has the ranks meet so many times, a millisecond apart.
func (s *synthetic) run(calls int) {
	n := len(s.ranks)
	const start = int64(1e9)
	for r, k := range s.ranks {
		clock := k.clock
		if clock == "" {
			clock = ClockHost
		}
		f := &File{Header: Header{Rank: r, Size: n, Host: k.host, Comm: "c"}, Path: fmt.Sprint(r)}
		f.Tracks = []FileTrack{{
			Track: Track{Lane: "group 1", Clock: clock, Ops: []string{"barrier"}}, Comm: "c", Rank: r, Size: n,
		}}
		s.files = append(s.files, f)
		host := k
		if k.clock != "" {
			host.offset, host.drift = 0, 0
		}
		for at := start; at <= start+int64(calls)*1e6+1e9; at += 1e9 {
			unix := at + 1e18 + k.set
			f.Anchors = append(f.Anchors, Anchor{ClockHost, host.read(at), unix, 20})
			if k.clock != "" {
				f.Anchors = append(f.Anchors, Anchor{k.clock, k.read(at), unix + s.random.Int64N(2000) - 1000, 1000})
			}
		}
	}
	s.truth = make([][]int64, n)
	for call := range calls {
		sent := make([]int64, n)
		for r := range n {
			at := start + int64(call)*1e6 + s.random.Int64N(20000)
			if s.delay != nil {
				at += s.delay(r, call)
			}
			s.event(r, Event{Site: Begin, Epoch: uint64(call), Peer: -1}, at)
			sent[r] = at + 500
			s.event(r, Event{Site: Signalled, Epoch: uint64(call), Peer: -1}, sent[r])
		}
		for r := range n {
			at := sent[r]
			for p := range n {
				if p != r {
					at = max(at+20, sent[p]+hop+int64(s.random.ExpFloat64()*300))
					s.event(r, Event{Site: Arrived, Epoch: uint64(call), Peer: int16(p)}, at)
				}
			}
			s.event(r, Event{Site: End, Epoch: uint64(call), Peer: -1}, at+100)
		}
	}
}

func (s *synthetic) event(r int, e Event, at int64) {
	e.Time = s.ranks[r].read(at)
	t := &s.files[r].Tracks[0]
	t.Events = append(t.Events, e)
	s.truth[r] = append(s.truth[r], at)
}

// errors are by how much ranks' times are wrong at most, to those of the first rank.
func (s *synthetic) errors(files []*File) (worst []int64) {
	base := int64(0)
	for r, f := range files {
		least, most := int64(math.MaxInt64), int64(math.MinInt64)
		for i, e := range f.Tracks[0].Events {
			d := int64(e.Time) - s.truth[r][i]
			least, most = min(least, d), max(most, d)
		}
		if r == 0 {
			base = (least + most) / 2
		}
		worst = append(worst, max(most-base, base-least))
	}
	return worst
}

// TestAlign: clocks with offsets and drifts are recovered within what alignment says, and no arrow points backwards.
func TestAlign(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(r, "ranks")
		s := &synthetic{random: rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))}
		gpus := rapid.Bool().Draw(r, "GPUs")
		for rank := range n {
			k := syntheticRank{host: fmt.Sprint("host ", rank/2), set: int64(rank/2) * 3e9}
			if gpus {
				k.clock = fmt.Sprint("gpu ", rank)
				k.offset = s.random.Int64N(1e15)
				k.drift = (s.random.Float64() - 0.5) * 2e-4
			}
			s.ranks = append(s.ranks, k)
		}
		s.run(rapid.SampledFrom([]int{1, 50, 2500}).Draw(r, "calls"))
		a, err := Align(s.files)
		if err != nil {
			r.Fatal(err)
		}
		if a.Backward != 0 || a.Arrows == 0 {
			r.Fatalf("%d of %d arrows point backwards, by up to %d ns", a.Backward, a.Arrows, a.Worst)
		}
		for rank, worst := range s.errors(s.files) {
			within := a.Clocks[a.Lanes[0].Tracks[rank].clock].Within + a.Clocks[a.Lanes[0].Tracks[0].clock].Within
			// Anchors err by a microsecond, so clocks drift by two in a second until they are corrected.
			if worst > within+2500 || within > 30000 {
				r.Errorf("rank %d is wrong by %d ns, said %d", rank, worst, within)
			}
		}
	})
}

// TestAlignOneClock: ranks that share a clock keep their times.
func TestAlignOneClock(t *testing.T) {
	s := &synthetic{random: rand.New(rand.NewPCG(1, 2)), ranks: make([]syntheticRank, 3)}
	for i := range s.ranks {
		s.ranks[i] = syntheticRank{host: "a", clock: "gpu x", offset: 1e12, drift: 1e-4}
	}
	s.run(300)
	a, err := Align(s.files)
	if err != nil || a.Backward != 0 {
		t.Fatal(a, err)
	}
	if worst := slices.Max(s.errors(s.files)); worst > 2500 {
		t.Fatal(worst)
	}
}

// TestAlignHalf: where nobody answers, a clock is moved only as far as arrows demand.
func TestAlignHalf(t *testing.T) {
	file := func(rank int, set int64, e Event) *File {
		e.Op = NoOp
		return &File{
			Header: Header{Rank: rank, Size: 2, Host: fmt.Sprint(rank)}, Anchors: []Anchor{{ClockHost, 0, 1e18 + set, 1}},
			Tracks: []FileTrack{{Track: Track{Lane: "x", Clock: ClockHost}, Rank: rank, Size: 2, Events: []Event{e, e}}},
		}
	}
	for _, set := range []int64{-5000, 5000} {
		a, err := Align([]*File{
			file(0, 0, Event{Time: 1000, Site: Signalled, Peer: -1}),
			file(1, set, Event{Time: 1000, Site: Arrived, Peer: 0}),
		})
		if err != nil || a.Backward != 0 {
			t.Fatal(set, a.Backward, err)
		}
		if c := a.Clocks[1]; c.Ahead > min(set, 0) || c.Ahead < min(set, 0)-rounding || c.Within >= 0 {
			t.Fatal(set, c)
		}
	}
}

// TestAlignWithoutAnchors: clocks that could not be read beside their host's are brought together by what their ranks
// sent each other, also where they drift and where the first of them rests meanwhile; the summary says how well.
func TestAlignWithoutAnchors(t *testing.T) {
	for _, rests := range []bool{false, true} {
		s := &synthetic{random: rand.New(rand.NewPCG(9, 10)), ranks: []syntheticRank{
			{host: "h", clock: "gpu a", offset: 5e9},
			{host: "h", clock: "gpu b", offset: -3e9, drift: 3e-5},
			{host: "h", clock: "gpu c", offset: 1e12, drift: -2e-5},
		}}
		s.run(5000)
		for r, f := range s.files {
			f.Anchors = slices.DeleteFunc(f.Anchors, func(a Anchor) bool { return a.Clock != ClockHost })
			f.Tracks[0].Events = slices.DeleteFunc(f.Tracks[0].Events, func(e Event) bool {
				return rests && r == 0 && e.Epoch > 1500 && e.Epoch < 3500
			})
		}
		a, err := Align(s.files)
		if err != nil || a.Backward != 0 || a.Arrows == 0 {
			t.Fatalf("%d of %d arrows point backwards, by up to %d ns: %v", a.Backward, a.Arrows, a.Worst, err)
		}
		clocks := a.Summarise().Clocks
		if len(clocks) != 4 || clocks[1].Within >= 0 || clocks[2].Of != "gpu a" || clocks[3].Of != "gpu a" {
			t.Fatalf("%+v", clocks)
		}
		if rests {
			continue
		}
		for r, worst := range s.errors(s.files) {
			if within := clocks[r+1].Within; r > 0 && (worst > within || within > 3000) {
				t.Errorf("rank %d is wrong by %d ns, said %d", r, worst, within)
			}
		}
	}
}

// TestChrome: every arrow has both ends, inside slices of its row; slices nest.
func TestChrome(t *testing.T) {
	for _, blocks := range []bool{false, true} {
		s := &synthetic{random: rand.New(rand.NewPCG(3, 4))}
		for rank := range 4 {
			s.ranks = append(s.ranks, syntheticRank{host: fmt.Sprint(rank / 2), set: int64(rank/2) * 1e6})
		}
		s.run(20)
		a, err := Align(s.files)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := a.Chrome(&out, ChromeOptions{Blocks: blocks}); err != nil {
			t.Fatal(err)
		}
		if arrows := CheckChrome(t, out.Bytes()); arrows != a.Arrows || arrows != 20*4*3 {
			t.Fatal(arrows, a.Arrows)
		}
	}
}

// CheckChrome checks what Chrome has written, and counts arrows.
func CheckChrome(t *testing.T, out []byte) (arrows int) {
	t.Helper()
	var file struct {
		TraceEvents []struct {
			Ph, Name string
			Pid, Tid int
			Ts, Dur  float64
			ID       int
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	type span struct{ from, to float64 }
	type row struct{ pid, tid int }
	spans, begins, ends := map[row][]span{}, map[int]float64{}, map[int]float64{}
	for _, e := range file.TraceEvents {
		if e.Ph == "X" {
			spans[row{e.Pid, e.Tid}] = append(spans[row{e.Pid, e.Tid}], span{e.Ts, e.Ts + e.Dur})
		}
	}
	for _, e := range file.TraceEvents {
		of := begins
		switch e.Ph {
		case "s":
		case "f":
			of = ends
		default:
			continue
		}
		if _, twice := of[e.ID]; twice {
			t.Fatal("two arrows", e.ID)
		}
		of[e.ID] = e.Ts
		if !slices.ContainsFunc(spans[row{e.Pid, e.Tid}], func(s span) bool {
			return s.from <= e.Ts+1e-3 && e.Ts <= s.to+1e-3
		}) {
			t.Fatalf("an arrow outside of all slices: %+v", e)
		}
	}
	for id, from := range begins {
		if to, ok := ends[id]; !ok || to < from {
			t.Fatal(id, from, to, ok)
		}
	}
	if len(begins) != len(ends) {
		t.Fatal(len(begins), len(ends))
	}
	for _, list := range spans {
		var open []span
		slices.SortStableFunc(list, func(a, b span) int {
			if a.from != b.from {
				return int(math.Copysign(1, a.from-b.from))
			}
			return int(math.Copysign(1, b.to-a.to))
		})
		for _, s := range list {
			for len(open) > 0 && open[len(open)-1].to <= s.from+1e-4 {
				open = open[:len(open)-1]
			}
			if len(open) > 0 && s.to > open[len(open)-1].to+1e-2 {
				t.Fatalf("%v is not in %v", s, open)
			}
			open = append(open, s)
		}
	}
	return len(begins)
}

// TestSummary: the rank that is late is named, and where.
func TestSummary(t *testing.T) {
	s := &synthetic{random: rand.New(rand.NewPCG(5, 6)), ranks: make([]syntheticRank, 4)}
	s.delay = func(rank, _ int) int64 { return int64(rank/2*(3-rank)) * 300000 } // rank 2
	s.run(100)
	a, err := Align(s.files)
	if err != nil {
		t.Fatal(err)
	}
	sum := a.Summarise()
	op := sum.Operations[0]
	if late := op.Ranks[2]; op.Calls != 100 || late.Last != 100 || late.AtCall != 100 || late.Beyond < 250000 ||
		late.Waited < 3*100*250000 || len(sum.Unfinished) != 0 {
		t.Fatalf("%+v", sum)
	}
	// Rank 1 stops before it calls for the last time, and the others see nothing of it.
	for r, f := range s.files {
		tr := &f.Tracks[0]
		last := tr.Events[len(tr.Events)-1].Epoch
		tr.Events = slices.DeleteFunc(tr.Events, func(e Event) bool {
			return e.Epoch == last && (r == 1 || e.Site == End || e.Site == Arrived && e.Peer == 1)
		})
	}
	sum = a.Summarise()
	var text strings.Builder
	if err := sum.Text(&text); err != nil {
		t.Fatal(err)
	}
	const want = "unfinished: barrier 99 of group 1 did not end on ranks 0, 2, 3: rank 1 recorded nothing of it"
	if !strings.Contains(text.String(), want) {
		t.Fatal(text.String())
	}
	s.files[1].Tracks[0].Overwritten, s.files[2].Tracks[0].Lost = 601, 7
	text.Reset()
	if err := a.Summarise().Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		" 7 lost;", "lost: 7 events, which", "lost: 601 of 1000 operations of group 1 came faster",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, text.String())
		}
	}
	if a, err = Align([]*File{s.files[0], s.files[2]}); err != nil {
		t.Fatal(err)
	}
	text.Reset()
	err = a.Summarise().Text(&text)
	if err != nil || !strings.Contains(text.String(), "missing: the files of ranks 1, 3: name") {
		t.Error(text.String(), err)
	}
	text.Reset()
	err = new(Summary).Text(&text)
	if err != nil || !strings.Contains(text.String(), "no operations") || strings.Contains(text.String(), "waited for") {
		t.Error(text.String(), err)
	}
	if _, err := Align([]*File{s.files[0], s.files[1], s.files[0]}); err == nil {
		t.Fatal("a file twice")
	}
}

// TestSummaryOfTwo: of two ranks the late one is compared with the other, wherever the delay comes about.
func TestSummaryOfTwo(t *testing.T) {
	for _, where := range []string{"at the call", "inside"} {
		s := &synthetic{random: rand.New(rand.NewPCG(7, 8)), ranks: make([]syntheticRank, 2)}
		s.delay = func(rank, _ int) int64 { return int64(rank) * 300000 }
		s.run(50)
		if where == "inside" { // rank 1 called as early as rank 0
			tr := &s.files[1].Tracks[0]
			for i := range tr.Events {
				if tr.Events[i].Site == Begin {
					tr.Events[i].Time -= 300000
				}
			}
		}
		a, err := Align(s.files)
		if err != nil {
			t.Fatal(err)
		}
		late := a.Summarise().Operations[0].Ranks[1]
		counts := map[string]int{"at the call": late.AtCall, "inside": late.Inside}
		if late.Last != 50 || late.Beyond < 250000 || counts[where] != 50 {
			t.Errorf("%s: %+v", where, late)
		}
	}
}

// TestArrowsOfBlocks: an arrival is of its own block's signal, or else of the earliest, and of a push only where
// nothing was signalled.
func TestArrowsOfBlocks(t *testing.T) {
	at := func(time uint64, site Site, block uint16, peer int16) Event {
		return Event{Time: time, Site: site, Block: block, Peer: peer, Op: NoOp}
	}
	lane := &Lane{Size: 2}
	for rank, events := range [][]Event{
		{
			at(1, Pushed, 0, -1),
			at(3, Signalled, 1, 1),
			at(4, Signalled, 0, -1),
			at(5, Signalled, 2, 0),
			{Time: 6, Site: Pushed, Step: 1, Peer: -1, Op: NoOp},
		},
		{
			at(7, Arrived, 0, 0),
			at(7, Arrived, 1, 0),
			at(8, Arrived, 2, 0),
			at(8, Arrived, 9, 0),
			{Time: 9, Site: Arrived, Step: 1, Peer: 0, Op: NoOp},
			{Time: 9, Site: Arrived, Step: 2, Peer: 0, Op: NoOp},
		},
	} {
		lane.Tracks = append(lane.Tracks, &AlignedTrack{
			FileTrack: &FileTrack{Rank: rank, Size: 2, Events: events},
		})
	}
	var got []uint64
	var a arrows
	for range 2 {
		got = got[:0]
		lane.operations(func(o *operation) {
			a.of(o, func(w arrow) { got = append(got, w.sent.Time) })
		})
	}
	if want := []uint64{4, 3, 3, 3, 6}; !slices.Equal(got, want) {
		t.Fatal(got, want)
	}
}

// TestAlignNonsense: times that no job has are refused.
func TestAlignNonsense(t *testing.T) {
	for _, time := range []uint64{1 << 60, 1 << 63, math.MaxUint64} {
		file := &File{
			Header: Header{Size: 2}, Anchors: []Anchor{{ClockHost, 0, math.MaxInt64 - 5, 1}},
			Tracks: []FileTrack{{Track: Track{Lane: "x", Clock: ClockHost}, Size: 2, Events: []Event{
				{Site: Signalled, Peer: -1, Op: NoOp}, {Time: time, Site: Signalled, Peer: -1, Op: NoOp},
			}}},
		}
		_, err := Align([]*File{file})
		if time != math.MaxUint64 && err == nil {
			t.Error(time)
		}
	}
	if _, err := Align(nil); err == nil {
		t.Error("no files")
	}
}

// TestHangText: operations are numbered from 1 in each generation.
func TestHangText(t *testing.T) {
	h := Hang{Name: "barrier", Lane: "group 1", Epoch: 2<<40 | 7, Waiting: []int{0}, For: []int{1}}
	const want = "barrier 7 in generation 2 of group 1 did not end on rank 0: not all of it came from rank 1"
	if got := h.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

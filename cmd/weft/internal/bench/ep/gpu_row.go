package ep

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/ep"
)

// GPURow is one operation of one shape on GPUs: a line of --json. Keys are stable; new ones may be
// added. Times are of the slowest rank of each replay or sample; bytes are of a rank, in the mean
// over ranks.
type GPURow struct {
	Op       string `json:"op"`     // dispatch, combine, prepare, dispatch-known, combine-backward, dispatch-backward
	Engine   string `json:"engine"` // gpu
	Contract string `json:"contract"`
	Ranks    int    `json:"ranks"`
	GPUs     int    `json:"gpus"`

	Tokens    int    `json:"tokens"`   // per rank
	Capacity  int    `json:"capacity"` // the most that a rank may have: by it protocols are chosen
	Hidden    int    `json:"hidden"`
	TopK      int    `json:"topk"`
	Experts   int    `json:"experts"`
	DType     string `json:"dtype"`
	Quantize  string `json:"quantize,omitempty"` // from which type dispatch quantises
	Scales    string `json:"scales,omitempty"`   // of FP8 rows: the order in which they arrive
	Layout    string `json:"layout"`
	Reduction string `json:"reduction"`
	Weighting string `json:"weighting"`
	Routing   string `json:"routing"`
	SMs       int    `json:"sms"`      // asked for; 0: the library's choice
	SMsUsed   int    `json:"sms_used"` // by the operation's kernel

	Tuning ep.KernelTuning `json:"tuning,omitzero"` // of the operation's kernel, where it is not the library's choice

	Operations int     `json:"operations"` // in a graph
	Replays    int     `json:"replays"`    // of it, that were timed
	P50        float64 `json:"p50_us"`     // in a graph: a replay over its operations
	Min        float64 `json:"min_us"`
	Max        float64 `json:"max_us"`
	Slowest    int     `json:"slowest_rank"` // most often
	P99        float64 `json:"p99_us"`       // of other replays of the same graph
	P99Replays int     `json:"p99_replays"`  // that many

	Ungated    float64 `json:"ungated_us"` // as p50_us, of as many replays that nothing makes begin together on all GPUs
	UngatedMax float64 `json:"ungated_max_us"`

	Samples   int     `json:"samples"`   // of each of the following
	Kernel    float64 `json:"kernel_us"` // alone in a graph, between two events: the median
	KernelP99 float64 `json:"kernel_p99_us"`
	KernelMax float64 `json:"kernel_max_us"`
	Empty     float64 `json:"empty_us"` // a kernel that does nothing, in the same way
	Eager     float64 `json:"eager_us"` // without a graph, from the call until the host sees the end: the median
	EagerP99  float64 `json:"eager_p99_us"`
	Issue     float64 `json:"issue_us"` // of that, the call alone
	// in a graph, with caches emptied before each: a difference of two medians, so it has no
	// percentiles
	Cold float64 `json:"cold_us"`

	WireBytes    int64 `json:"wire_bytes"`    // to other ranks, scales included
	LogicalBytes int64 `json:"logical_bytes"` // a row for each rank that a token visits, its own included
	DeepEPBytes  int64 `json:"deepep_bytes"`  // a row for each selection

	GBps     float64 `json:"gbps"`                 // wire_bytes over p50_us
	LinkGBps float64 `json:"link_gbps,omitempty"`  // the bandwidth of kernels on the links in this run
	Ratio    float64 `json:"link_ratio,omitempty"` // gbps over link_gbps

	Floor      float64 `json:"floor_us,omitempty"`    // in which the links carry wire_bytes, at link_gbps
	FloorRatio float64 `json:"floor_ratio,omitempty"` // floor_us over p50_us, as in all benchmarks

	// Of every rank, if the slowest replay took more than five times as long as the fastest.
	Timed        [][]float64 `json:"replays_us,omitempty"`
	UngatedTimed [][]float64 `json:"ungated_replays_us,omitempty"`

	Verified bool     `json:"verified"` // all that was checked in this run was right
	Problems []string `json:"problems,omitempty"`
}

// outlier is how much slower than the fastest replay one must be for all to be shown.
const outlier = 5

// SetLink sets the links' ceiling of the same run, in 1e9 bytes a second.
func (r *GPURow) SetLink(gbps float64) {
	if gbps > 0 {
		r.LinkGBps, r.Ratio = gbps, r.GBps/gbps
		r.Floor, r.FloorRatio = float64(r.WireBytes)/gbps/1e3, r.Ratio
	}
}

// gpuRow is the row of an operation.
func (m *gpuRank) gpuRow(o timing.Operation, f timing.Figures) GPURow {
	s := m.handle.Spec()
	row := GPURow{
		Op: o.Name, Engine: ep.GPUEngine.String(), Contract: m.cfg.Contract(), Ranks: m.ranks,
		GPUs:   min(m.ranks, len(m.Contexts)),
		Tokens: m.cfg.Tokens, Capacity: s.MaxTokens, Hidden: s.Hidden, TopK: s.TopK, Experts: s.Experts,
		DType: s.Payload.String(), Scales: m.cfg.ScaleOrder(),
		Layout: s.Layout.String(), Reduction: s.Reduction.String(), Weighting: s.Weighting.String(),
		Routing: string(m.cfg.Routing), SMs: s.SMs, SMsUsed: o.SMs,
		Operations: m.Operations, Samples: m.Samples, Empty: m.nothing,
		WireBytes: int64(o.Bytes.Wire), LogicalBytes: int64(o.Bytes.Logical), DeepEPBytes: int64(o.Bytes.DeepEP),
		Verified: f.Verified, Problems: f.Problems,
	}
	if row.Tuning = s.Tuning.Dispatch; o.Name == "combine" {
		row.Tuning = s.Tuning.Combine
	}
	if s.Quantize != weft.InvalidDType {
		row.Quantize = s.Quantize.String()
	}
	row.setTimes(f)
	return row
}

// setTimes fills in the times.
func (r *GPURow) setTimes(f timing.Figures) {
	us := measure.Micros
	r.setGraph(f.Graph, f.Times)
	r.setTail(f.Tail)
	r.setUngated(f.Ungated, f.Free)
	r.Kernel, r.KernelP99, r.KernelMax = us(f.Kernel.P50), us(f.Kernel.P99), us(f.Kernel.Max)
	r.Issue, r.Eager, r.EagerP99, r.Cold = us(f.Issue.P50), us(f.Eager.P50), us(f.Eager.P99), f.Cold
}

// setGraph fills in the times of replays, by rank.
func (r *GPURow) setGraph(s measure.Summary, times [][]float64) {
	each := func(us float64) float64 { return us / float64(r.Operations) }
	r.Replays, r.Slowest = s.Iterations, s.Slowest
	r.P50, r.Min, r.Max = each(measure.Micros(s.P50)), each(measure.Micros(s.Min)), each(measure.Micros(s.Max))
	if r.P50 > 0 {
		r.GBps = float64(r.WireBytes) / r.P50 / 1e3
	}
	if s.Max > outlier*s.Min {
		r.Timed = times
	}
}

// setTail fills in the percentile of the replays that were made for it.
func (r *GPURow) setTail(s measure.Summary) {
	r.P99, r.P99Replays = measure.Micros(s.P99)/float64(r.Operations), s.Iterations
}

// setUngated fills in the times of replays that did not begin together.
func (r *GPURow) setUngated(s measure.Summary, times [][]float64) {
	each := func(us float64) float64 { return us / float64(r.Operations) }
	r.Ungated, r.UngatedMax = each(measure.Micros(s.P50)), each(measure.Micros(s.Max))
	if s.Max > outlier*s.Min {
		r.UngatedTimed = times
	}
}

// Contract names a shape's contract, in a few words.
func (e Shape) Contract() string {
	words := []string{e.Layout, e.Reduction, e.DType, e.ScaleOrder(), ""}
	if e.ScaleOrder() != "" && !e.Given {
		words[4] = "from bf16"
	}
	if e.Layout == ep.RankMajor.String() {
		words[1] = ""
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// given says whether rows have scales of the caller's.
func (e Shape) given() bool { return e.Given && e.ScaleOrder() != "" }

// ScaleOrder is the order of the scales that arrive, or empty where there are none.
func (e Shape) ScaleOrder() string {
	if !strings.HasPrefix(e.DType, ep.FP8.String()) {
		return ""
	}
	return cmp.Or(e.Scales, ep.RowMajorScales.String())
}

// bytesOf are the bytes of an operation, in the mean over ranks.
func bytesOf(wire, logical, deepep int64) timing.Bytes {
	return timing.Bytes{Wire: float64(wire), Logical: float64(logical), DeepEP: float64(deepep)}
}

// moves are the mean bytes of the ranks' dispatches and combines.
func (m *expected) moves(b *batch) (there, back timing.Bytes) {
	t := m.traffic(b)
	returning := t.RemoteRankRows
	if m.byExpert() && m.spec.Reduction == ep.Exact {
		returning = t.RemoteSelections
	}
	row, home := m.cfg.Hidden*m.payload.Size()+m.scaleBytes(), m.cfg.Hidden*m.spec.Output.Size()
	there = bytesOf(m.perRank(t.RemoteRankRows, row), m.perRank(t.RankRows, row), m.perRank(t.Selections, row))
	back = bytesOf(m.perRank(returning, home), m.perRank(t.RankRows, home), m.perRank(t.Selections, home))
	return there, back
}

// spreads are the mean bytes of the ranks' CombineBackwards: a token's gradient goes once to each
// rank that has rows of it.
func (m *expected) spreads(b *batch) timing.Bytes {
	t, row := m.traffic(b), m.cfg.Hidden*m.spec.Output.Size()
	return bytesOf(m.perRank(t.RemoteRankRows, row), m.perRank(t.RankRows, row), m.perRank(t.Selections, row))
}

// traffic is that of all ranks together.
func (m *expected) traffic(b *batch) (t routing.Traffic) {
	for r, ids := range b.ids {
		t = t.Add(routing.Count(ids, m.cfg.TopK, r, m.cfg.Experts/m.ranks))
	}
	return t
}

// perRank is the bytes of a rank, of so many rows of all.
func (m *expected) perRank(rows, size int) int64 { return int64(rows) * int64(size) / int64(m.ranks) }

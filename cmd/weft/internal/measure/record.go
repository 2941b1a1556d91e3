package measure

import (
	"encoding/json"
	"fmt"
	"io"
)

// Record is one measured operation in one configuration: one line of --json. Keys
// are never renamed or given another meaning; new ones may be added. Bytes are per
// iteration; of a rank, in the mean over ranks, unless said otherwise.
type Record struct {
	Op     string `json:"op"`     // dispatch, combine, allreduce, ...
	Engine string `json:"engine"` // host, cuda
	Ranks  int    `json:"ranks"`

	Tokens    int    `json:"tokens,omitempty"` // per rank
	Hidden    int    `json:"hidden,omitempty"` // elements of a row
	TopK      int    `json:"topk,omitempty"`
	Experts   int    `json:"experts,omitempty"` // of all ranks
	DType     string `json:"dtype,omitempty"`
	Scales    string `json:"scales,omitempty"` // row-major, column-major: the order of those that arrive with FP8 rows
	Layout    string `json:"layout,omitempty"`
	Reduction string `json:"reduction,omitempty"` // exact, partial, ...; collectives: sum, max, ...
	Weighting string `json:"weighting,omitempty"` // weighted, plain
	Counts    string `json:"counts,omitempty"`    // host, device
	Routing   string `json:"routing,omitempty"`   // uniform, zipf, hot
	Mode      string `json:"mode,omitempty"`      // of calls: one-call, phases
	Operand   string `json:"operand,omitempty"`   // window: read where it is; heap: staged
	Cached    bool   `json:"cached,omitempty"`    // by routing that was prepared before, once
	Fresh     bool   `json:"fresh,omitempty"`     // operands were written anew before each operation
	Batches   int    `json:"batches,omitempty"`   // different routings, taken in turn
	InPlace   bool   `json:"in_place,omitempty"`  // collectives: one operand lies in the other

	*Collective // nil: of another operation
	*GPU        // nil: on the host

	Iterations int     `json:"iterations"`
	P50        float64 `json:"p50_us"` // of the slowest rank of each iteration, as are all times
	P99        float64 `json:"p99_us"`
	Min        float64 `json:"min_us"`
	Max        float64 `json:"max_us"`
	Mean       float64 `json:"mean_us"`
	Slowest    int     `json:"slowest_rank"` // the rank that most often was it

	WireBytes    int64 `json:"wire_bytes"`              // that leave the rank for another
	LogicalBytes int64 `json:"logical_bytes,omitempty"` // one row per token and rank visited, the own included
	DeepEPBytes  int64 `json:"deepep_bytes,omitempty"`  // one row per selection, the own rank's included
	// by all ranks: read from where rows are, and written to where they go
	MovedBytes int64 `json:"moved_bytes,omitempty"`
	// 1e9 bytes a second: deepep_bytes, or bytes of a collective, over p50_us
	GBps float64 `json:"gbps"`

	// in which memcpy moves moved_bytes through cold memory, a thread for each rank that has a
	// processor; of collectives: bytes times bus_factor over ceiling_gbps
	Floor      float64 `json:"floor_us,omitempty"`
	FloorRatio float64 `json:"floor_ratio,omitempty"` // floor_us over p50_us: 1 is the speed of memcpy

	Memory int64 `json:"memory_bytes,omitempty"` // join: resident memory of the largest rank, shared memory not counted

	Verified bool   `json:"verified"` // the output of this run was checked and right
	Host     string `json:"host"`
	Version  string `json:"version"`
}

// Collective is what rows of collectives have more. Bandwidths and sizes are those of nccl-tests.
type Collective struct {
	Bytes     int64   `json:"bytes"`     // all-reduce, broadcast, reduce: the vector; else the whole of a rank's parts
	Algorithm string  `json:"algorithm"` // that ran
	UsP50     float64 `json:"us_p50"`    // p50_us
	UsP99     float64 `json:"us_p99"`    // p99_us
	AlgBW     float64 `json:"algbw"`     // 1e9 bytes a second: bytes over p50_us
	BusBW     float64 `json:"busbw"`     // algbw times bus_factor
	Bus       float64 `json:"bus_factor"`
	Wrong     int64   `json:"wrong"` // elements of the first output of each rank that was wrong
	// 1e9 bytes a second that the links carry out of a GPU, or memcpy for each rank of the host, through
	// cold memory. On GPUs it is measured for reports.
	Ceiling float64 `json:"ceiling_gbps,omitempty"`
}

// GPU is what rows of collectives on GPUs have more.
type GPU struct {
	GPUs       int     `json:"gpus"`
	Device     string  `json:"device"`
	Loopback   bool    `json:"loopback"`     // the peers are regions of the only rank's GPU
	Operations int     `json:"operations"`   // in a graph; 1 without
	Empty      float64 `json:"empty_us"`     // an empty kernel in the operation's place
	Dependent  float64 `json:"dependent_us"` // an empty kernel that is a dependent launch; 0: the GPU has none
	Issue      float64 `json:"issue_us"`     // without a graph: the call alone; 0 in a graph
	EmptyIssue float64 `json:"empty_issue_us"`
}

// Message is the size of a collective, or 0.
func (r *Record) Message() int64 {
	if r.Collective == nil {
		return 0
	}
	return r.Collective.Bytes
}

// SetCeiling notes what the links, or memcpy, carry, and the floor that follows from it. Times must be set
// before.
func (r *Record) SetCeiling(gbps float64) {
	c := r.Collective
	if c == nil || gbps <= 0 {
		return
	}
	c.Ceiling = gbps
	if r.Floor = float64(c.Bytes) * c.Bus / gbps / 1e3; r.P50 > 0 {
		r.FloorRatio = r.Floor / r.P50
	}
}

// SetTimes fills in the times of a summary and the fields that follow from them. Bytes must be set
// before.
func (r *Record) SetTimes(s Summary) {
	r.Iterations, r.Slowest = s.Iterations, s.Slowest
	r.P50, r.P99, r.Min, r.Max, r.Mean = Micros(s.P50), Micros(s.P99), Micros(s.Min), Micros(s.Max), Micros(s.Mean)
	bytes := r.DeepEPBytes
	if r.Collective != nil {
		bytes = r.Collective.Bytes
	}
	if r.P50 > 0 {
		r.GBps = float64(bytes) / r.P50 / 1e3
		r.FloorRatio = r.Floor / r.P50
	}
	if c := r.Collective; c != nil {
		c.UsP50, c.UsP99, c.AlgBW, c.BusBW = r.P50, r.P99, r.GBps, r.GBps*c.Bus
	}
}

// Count writes a number of things: "1 token", "2 tokens".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Size writes a byte count with a binary unit.
func Size(n int64) string {
	for _, u := range []struct {
		unit  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes {
			return fmt.Sprintf("%.3g %s", float64(n)/float64(u.bytes), u.unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Printer shows records as they come.
type Printer interface{ Print(Record) error }

// Lines prints each record as a line of JSON.
func Lines(w io.Writer) Printer {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return lines{e}
}

type lines struct{ enc *json.Encoder }

func (l lines) Print(r Record) error { return l.enc.Encode(r) }

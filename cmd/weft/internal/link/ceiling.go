package link

import (
	"cmp"
	"slices"
	"time"
)

// Way is how bytes move, or which small operation is timed.
type Way string

// The ways.
const (
	Store     Way = "store"       // threads write 16 bytes at a time to the receiver's memory
	Load      Way = "load"        // threads read 16 bytes at a time from the sender's memory
	BulkStore Way = "bulk-store"  // bulk copies from shared memory to the receiver's memory; Hopper and later
	BulkLoad  Way = "bulk-load"   // bulk copies from the sender's memory to shared memory; Hopper and later
	Engine    Way = "copy-engine" // the GPU's copy engines, which take no SM

	Empty            Way = "empty"             // a kernel that does nothing
	EmptyDependent   Way = "empty-dependent"   // the same, started before its predecessor has ended
	Barrier          Way = "barrier"           // a kernel in which every GPU waits for a word of every GPU
	BarrierDependent Way = "barrier-dependent" // the same, started before its predecessor has ended
	Hop              Way = "hop"               // a word from one GPU to another: half of there and back

	// Rows of tokens by bulk copies, whose warps have a whole row in shared memory unless the way says otherwise, and a
	// barrier behind them. Hopper and later.
	RowsWhole     Way = "rows"            // to GPUs in the order of selections, as a dispatch does
	RowsTurned    Way = "rows-turned"     // with another GPU first for each token and each source, as in those below
	RowsAhead     Way = "rows-ahead"      // half as many warps: each loads a row while it stores another
	RowsHalves    Way = "rows-halves"     // each warp loads half of a row while it stores another
	RowsThirds    Way = "rows-thirds"     // the same of thirds, of which three are in its memory
	RowsOwnStores Way = "rows-own-stores" // rows for the GPU itself by ordinary stores of other warps
	RowsPeers     Way = "rows-peers"      // none for the GPU itself
)

// Movers are the ways that move bytes, in the order in which they are measured.
var Movers = []Way{Store, Load, BulkStore, BulkLoad, Engine}

// Pattern is the senders and receivers of a measurement.
type Pattern string

// The patterns.
const (
	AllToAll Pattern = "all-to-all" // each GPU to all others, taken in turn for every piece
	Pair     Pattern = "pair"       // the first GPU to the second
	AllToOne Pattern = "all-to-one" // all others to the first
	Local    Pattern = "local"      // one GPU to itself: its memory, no link
	Routed   Pattern = "routed"     // a row of each token to every GPU that has one of its eight experts
)

// Row is one measurement: a line of --json. Keys are stable; new ones may be added.
type Row struct {
	Op         string  `json:"op"` // link
	Way        Way     `json:"way"`
	Pattern    Pattern `json:"pattern,omitempty"`
	GPUs       int     `json:"gpus"`
	SMs        int     `json:"sms"`             // blocks, each on an SM of its own; 0: none
	Threads    int     `json:"threads"`         // of a block
	Bytes      int64   `json:"bytes,omitempty"` // of an operation out of each GPU; all to one: into the one
	Operations int     `json:"operations"`      // in a graph
	Replays    int     `json:"replays"`         // timed ones
	Micros     float64 `json:"p50_us"`          // an operation of the slowest GPU, the median over replays
	Min        float64 `json:"min_us"`
	Max        float64 `json:"max_us"`
	GBps       float64 `json:"gbps,omitempty"` // 1e9 bytes a second: bytes over p50_us
	Wrong      int64   `json:"wrong,omitempty"`
	Verified   bool    `json:"verified"`
}

// Rate is the result of a way.
type Rate struct {
	GBps float64 // out of each GPU, in 1e9 bytes a second
	Way  Way
	SMs  int
}

// Ceiling is a set of rates, and the largest that kernels reached.
type Ceiling struct {
	GPUs   int
	Device string // the product's name, of the first GPU
	SMs    int    // that a GPU has
	Rows   []Row
}

// Local says that there was one GPU: rates are those of its own memory, and there was no link.
func (c Ceiling) Local() bool { return c.GPUs == 1 }

// Best is the best rate of kernels, all to all, with any number of SMs. Copy engines do not count,
// for operations are kernels.
func (c Ceiling) Best() Rate { return c.At(c.SMs) }

// At is the best rate of kernels, all to all, with so many SMs or fewer. It is zero if none was
// measured.
func (c Ceiling) At(sms int) Rate {
	var best Rate
	for _, r := range c.Rows {
		if r.Verified && (r.Pattern == AllToAll || r.Pattern == Local) && r.SMs > 0 && r.SMs <= sms && r.GBps > best.GBps {
			best = Rate{r.GBps, r.Way, r.SMs}
		}
	}
	return best
}

// With is the most that kernels on so many SMs can carry, all to all: the best rate of the nearest
// number that was measured and is no larger, in proportion, and never more than Best. With fewer
// SMs than were measured it is that of the fewest.
func (c Ceiling) With(sms int) float64 {
	var measured []int
	for _, r := range c.Rows {
		if r.Pattern == AllToAll || r.Pattern == Local {
			measured = append(measured, r.SMs)
		}
	}
	slices.Sort(measured)
	near := 0
	for _, n := range measured {
		if near == 0 || n <= sms {
			near = n
		}
	}
	rate := c.At(near).GBps
	if near > 0 && near < sms {
		rate *= float64(sms) / float64(near)
	}
	return min(rate, c.Best().GBps)
}

// Small is the time of the smallest operation of a way, with the fewest SMs. It is zero if it was
// not measured.
func (c Ceiling) Small(w Way) time.Duration {
	rows := slices.DeleteFunc(slices.Clone(c.Rows), func(r Row) bool { return r.Way != w || !r.Verified })
	if len(rows) == 0 {
		return 0
	}
	r := slices.MinFunc(rows, func(a, b Row) int { return cmp.Compare(a.SMs, b.SMs) })
	return time.Duration(r.Micros * float64(time.Microsecond))
}

// times fills in the fields that follow from the slowest GPU's times of the replays.
func (r *Row) times(replays []time.Duration) {
	slices.Sort(replays)
	each := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(r.Operations) }
	r.Replays = len(replays)
	r.Micros, r.Min, r.Max = each(replays[len(replays)/2]), each(replays[0]), each(replays[len(replays)-1])
	if r.Bytes > 0 && r.Micros > 0 {
		r.GBps = float64(r.Bytes) / r.Micros / 1e3
	}
}

package fabrics

import (
	"slices"
	"time"
)

// What a row measures.
const (
	Write  = "write"        // a write and its Flush
	Signal = "signal"       // a signal one way: half of a round trip
	Port   = "port"         // a put of 8 bytes with a signal through a proxy, one way: half of a round trip
	Add    = "add"          // an add and its Flush
	Writes = "writes"       // writes in bursts, then a Flush
	Stream = "stream"       // writes of a size, several at once, then a Flush
	Floor  = "socket"       // 8 bytes over a bare TCP connection, one way
	Pipe   = "socket-write" // writes of a size over it
)

// Row is one line of --json. Keys are never renamed; new ones may be added.
type Row struct {
	Op       string  `json:"op"` // fabric
	Provider string  `json:"provider"`
	Library  string  `json:"library"`
	What     string  `json:"what"`
	Bytes    int     `json:"bytes"` // of one write
	Batch    int     `json:"batch"` // writes before a Flush
	Bursts   int     `json:"bursts"`
	P50      float64 `json:"p50_us"` // of one operation, in the best burst: a write, or a round trip's half
	Min      float64 `json:"min_us"`
	Rate     float64 `json:"mops"` // 10^6 operations a second
	GBps     float64 `json:"gbps"` // 10^9 bytes a second
	Floor    float64 `json:"floor_us,omitempty"`
	Ratio    float64 `json:"floor_ratio,omitempty"` // floor_us over p50_us
	Verified bool    `json:"verified"`
	Host     string  `json:"host"`
	Version  string  `json:"version"`
}

// set fills in what follows from bursts of operations, each the time of one operation.
func (r *Row) set(bursts [][]time.Duration) {
	r.Bursts = len(bursts)
	best, least := time.Duration(1<<62), time.Duration(1<<62)
	for _, times := range bursts {
		slices.Sort(times)
		best, least = min(best, times[len(times)/2]), min(least, times[0])
	}
	r.P50, r.Min = micros(best), micros(least)
	r.Rate = 1 / r.P50
	r.GBps = float64(r.Bytes) / r.P50 / 1e3
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

package bench

import (
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/ep"
)

// Task is what ranks are to measure; one of its fields is set. Validate before use.
type Task struct {
	EP        *EP        `json:",omitempty"`
	AllReduce *AllReduce `json:",omitempty"`
	Join      *Join      `json:",omitempty"`
}

// Effort says how long to measure one operation in one shape.
type Effort struct {
	Iterations int           // 0: as many as fit in Time, but a few at least
	Time       time.Duration // of all iterations together, barriers included
	Warmup     int           // 0: every routing twice, or a few
}

// time is how long a task is told to measure.
func (t Task) time() time.Duration {
	switch {
	case t.EP != nil:
		return t.EP.Time
	case t.AllReduce != nil:
		return t.AllReduce.Time * time.Duration(len(t.AllReduce.Bytes))
	}
	return 0
}

// EP is one shape of dispatch and combine.
type EP struct {
	Tokens, Hidden, TopK, Experts int // tokens per rank
	Capacity                      int `json:",omitempty"` // the most tokens per rank, if that is more than Tokens
	SMs                           int `json:",omitempty"` // on GPUs: for the kernels; 0: the library's choice

	Tuning ep.Tuning `json:",omitzero"` // on GPUs: of the kernels

	DType, Layout, Reduction, Weighting, Counts string // as package ep names them

	Scales string `json:",omitempty"` // order of the scales that arrive with FP8 rows; empty: row-major
	// on GPUs: FP8 rows and their scales are the caller's; else dispatch quantises them from bf16
	Given bool `json:",omitempty"`

	Routing routing.Kind
	Seed    uint64
	Phases  bool // send and receive apart
	Heap    bool // operands outside windows: staged
	Cached  bool // prepare once, outside the timing
	InPlace bool // experts overwrite the rows that they received
	Batches int  // different routings, taken in turn
	Fresh   bool // operands are written anew before every operation
	Effort
}

// AllReduce is a sweep over message sizes.
type AllReduce struct {
	Bytes     []int64
	DType, Op string
	Algorithm string // empty: the library's choice
	Heap      bool
	InPlace   bool
	Effort
}

// Join measures how long joining takes, again and again among the same processes.
type Join struct {
	Rounds int
}

// Series is what one rank measured of one operation in one shape.
type Series struct {
	Op    string
	Bytes int64  // collectives: the message
	Times []byte // nanoseconds, uint32, little endian

	// Of this rank, in bytes per iteration.
	Wire, Logical, DeepEP, Moved float64

	Problem string // what was wrong first; empty is verified
	Memory  int64  // join: resident bytes of the process, shared memory not counted
}

// message is a line from a rank to the command.
type message struct {
	Done, Total int     `json:",omitempty"` // progress, from rank 0
	Series      *Series `json:",omitempty"` // a result; there may be more
}

package timing

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// Series is one rank's measurement of one operation in one shape.
type Series struct {
	Op    string
	Times []byte // nanoseconds, uint32, little endian

	Collective *measure.Collective // nil: of another operation

	// Of this rank, in bytes per iteration.
	Wire, Logical, DeepEP, Moved float64

	Problem string // the first error; empty is verified
	Wrong   int64  // elements of it, where they are counted
	Memory  int64  // join: resident bytes of the process, shared memory not counted
}

// Durations are the times of a series.
func (s *Series) Durations() []time.Duration {
	out := make([]time.Duration, len(s.Times)/4)
	for i := range out {
		out[i] = time.Duration(binary.LittleEndian.Uint32(s.Times[4*i:]))
	}
	return out
}

// recorder collects durations without allocating while it is measured.
type recorder struct{ ns []uint32 }

func newRecorder(n int) *recorder { return &recorder{ns: make([]uint32, 0, n)} }

func (r *recorder) add(d time.Duration) {
	r.ns = append(r.ns, uint32(min(max(d, 0), math.MaxUint32)))
}

func (r *recorder) pack() []byte {
	out := make([]byte, 0, 4*len(r.ns))
	for _, v := range r.ns {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	return out
}

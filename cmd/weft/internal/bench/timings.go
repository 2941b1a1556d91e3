package bench

import (
	"encoding/binary"
	"math"
	"time"
)

// timings collects durations without allocating while it is measured.
type timings struct{ ns []uint32 }

func newTimings(n int) *timings { return &timings{ns: make([]uint32, 0, n)} }

func (t *timings) add(d time.Duration) {
	t.ns = append(t.ns, uint32(min(max(d, 0), math.MaxUint32)))
}

func (t *timings) pack() []byte {
	out := make([]byte, 0, 4*len(t.ns))
	for _, v := range t.ns {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	return out
}

func unpack(b []byte) []time.Duration {
	out := make([]time.Duration, len(b)/4)
	for i := range out {
		out[i] = time.Duration(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

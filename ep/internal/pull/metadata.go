package pull

import (
	"unsafe"

	"github.com/weftgo/weft/ep/spec"
)

// metadata is the routing metadata that a rank writes in a Prepare and the others read: how much it
// sends to each expert and rank, and a record for each (token, destination rank).
type metadata struct {
	counts  []int32 // selections of each expert
	tokens  []int32 // tokens for each rank
	first   []int32 // the first record for each rank
	records unsafe.Pointer
	size    int // of a record
	topk    int
}

// metadataAt is a rank's metadata, in its memory, of the operation that opens in a round. Operations
// use two of them by turns: when all ranks have entered an operation, all have left the one before,
// and its metadata may be written for the next.
func metadataAt(g *spec.Geometry, mem []byte, round uint64) metadata {
	p := unsafe.Pointer(&mem[int64(round%2)*g.MetadataSize()])
	m := metadata{size: g.RecordSize(), topk: g.TopK}
	m.counts = unsafe.Slice((*int32)(p), g.Experts)
	p = unsafe.Add(p, 4*g.Experts)
	m.tokens = unsafe.Slice((*int32)(p), g.Ranks)
	p = unsafe.Add(p, 4*g.Ranks)
	m.first = unsafe.Slice((*int32)(p), g.Ranks)
	m.records = unsafe.Add(p, 4*g.Ranks)
	return m
}

// span is where the records for a rank stand, as far as there is room for them.
func (m *metadata) span(g *spec.Geometry, rank int) (from, to int) {
	from = int(m.first[rank])
	to = from + int(m.tokens[rank])
	if from < 0 || to < from || to > g.Records() {
		return 0, 0
	}
	return from, to
}

// record is a token on its way to one rank: its index at the source, and for each selection the
// expert's index there, or -1, and the weight.
type record struct {
	token   *int32
	experts []int16
	weights []float32
}

func (m *metadata) record(i int) record {
	p := unsafe.Add(m.records, i*m.size)
	return record{
		token:   (*int32)(p),
		experts: unsafe.Slice((*int16)(unsafe.Add(p, 4)), m.topk),
		weights: unsafe.Slice((*float32)(unsafe.Add(p, (4+2*m.topk+3)&^3)), m.topk),
	}
}

package cost

import (
	"fmt"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Model is a machine on which plans run: links, and what blocks themselves take. What is zero is free.
type Model struct {
	Topology *Topology
	Op       float64 // microseconds that each operation takes its block, nops and signals among them
	CopyGBps float64 // what a block reads and writes in its rank's own memory
}

// Cost is what a plan takes at one size of message.
type Cost struct {
	Time  float64   // microseconds from the beginning to the end of the last rank
	Links []Traffic // of the links that are not broken, by their ranks
	// Detours are pairs of ranks that reach each other in the plan without a link of their own.
	Detours [][2]int
}

// Traffic is what a link carried.
type Traffic struct {
	From, To int
	Bytes    float64
	Busy     float64 // microseconds
}

// windows is how many windows of a chunk are looked at.
const windows = 128

// Bytes is how large a message of a plan is at a size of chunk: the output of an all-gather, else the input.
func Bytes(f *spec.File, chunk int) int { return chunks(f) * chunk }

func chunks(f *spec.File) (n int) {
	for r := range f.Ranks {
		if f.Collective == spec.AllGather {
			n = max(n, f.Ranks[r].Output)
		} else {
			n = max(n, f.Ranks[r].Input)
		}
	}
	return max(n, 1)
}

// Of is the cost of a plan that [spec.File.Check] passes, at a size of message. Chunks are rounded up to what the plan
// can have. It is an error if the plan has other ranks than the topology, reaches ranks to which no links lead, or does
// not end.
func (m Model) Of(f *spec.File, bytes int) (Cost, error) {
	if err := m.Topology.Check(); err != nil {
		return Cost{}, err
	}
	switch {
	case len(f.Ranks) != m.Topology.Ranks:
		return Cost{}, fmt.Errorf("cost: plan %s has %d ranks, and the topology %d", f.Name, len(f.Ranks), m.Topology.Ranks)
	case bytes < 0:
		return Cost{}, fmt.Errorf("cost: a message of %d bytes", bytes)
	}
	align, n := max(f.Alignment, 1), chunks(f)
	chunk := ((bytes+n-1)/n + align - 1) / align * align
	return newMachine(m, program.Of(f, program.Shape{
		Chunk: max(chunk, align), Align: align,
		Window: func(unit uint64) int {
			return int(min(max(unit, uint64(chunk+windows-1)/windows), uint64(max(chunk, align))*uint64(n)))
		},
	})).run()
}

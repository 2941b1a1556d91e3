package plantest

import (
	"fmt"
	"math/rand/v2"

	"github.com/weftgo/weft"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Oracle runs a plan operation by operation in one goroutine, on numbers. Executors leave the same bits: an operation
// folds its sources in one order and rounds once, and what a right plan leaves does not depend on the order of
// operations.
type Oracle struct {
	program  *program.Program
	dtype    weft.DType
	memories [][]byte
	slots    [][]byte // data of packets, by rank
	there    [][]bool
	inbound  []int
	values   []int
	at       []int // of each block: the step
	barriers map[[2]int]map[int]int
}

// NewOracle makes an oracle of a plan at a size of chunk.
func NewOracle(f *spec.File, dtype weft.DType, chunk int) *Oracle {
	p := program.Of(f, program.Shape{Chunk: chunk, Align: f.Alignment})
	o := &Oracle{program: p, dtype: dtype, inbound: make([]int, len(p.Ends)), at: make([]int, len(p.Blocks))}
	o.values = append(o.values, p.Semaphores...)
	for i, n := range p.Memories {
		o.memories = append(o.memories, make([]byte, n))
		if i%program.Buffers == int(spec.Scratch) {
			o.slots, o.there = append(o.slots, make([]byte, n)), append(o.there, make([]bool, n))
		}
	}
	return o
}

// Buffer is a rank's input or output.
func (o *Oracle) Buffer(rank int, b spec.Buffer) []byte {
	r := o.program.Whole(rank, b)
	return o.memories[r.Memory][r.From:r.To]
}

// Fill puts numbers into all inputs, by a seed: of floats such that sums round.
func (o *Oracle) Fill(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	for r := range o.program.File.Ranks {
		fill(random, o.dtype, o.Buffer(r, spec.Input))
	}
}

// fill writes random elements, without NaNs and infinities.
func fill(random *rand.Rand, t weft.DType, to []byte) {
	for i := range to {
		to[i] = byte(random.Uint32())
	}
	size := t.Size()
	for i := size - 1; i < len(to); i += size {
		switch t { // an exponent that is neither all ones nor far from one
		case weft.BFloat16, weft.Float32, weft.Float64:
			to[i] = to[i]&0x80 | 0x3F
		case weft.Float16:
			to[i] = to[i]&0x83 | 0x38
		case weft.Float8E4M3, weft.Float8E5M2:
			to[i] = to[i]&0x87 | 0x30
		case weft.Bool:
			to[i] &= 1
		default:
		}
	}
}

// Run runs a launch.
func (o *Oracle) Run() error {
	p := o.program
	clear(o.at)
	o.barriers = make(map[[2]int]map[int]int)
	for r := range o.there {
		clear(o.there[r])
	}
	for {
		moved, left := false, -1
		for b := range p.Blocks {
			for o.at[b] < len(p.Blocks[b].Steps) && o.step(b, &p.Blocks[b].Steps[o.at[b]]) {
				o.at[b]++
				moved = true
			}
			if o.at[b] < len(p.Blocks[b].Steps) {
				left = b
			}
		}
		switch {
		case left < 0:
			return nil
		case !moved:
			return fmt.Errorf("%v does not end", p.Blocks[left].Steps[o.at[left]].Site)
		}
	}
}

// step runs a block's operation, unless it must wait.
func (o *Oracle) step(b int, s *program.Step) bool {
	switch s.Op.Kind {
	case spec.Nop, spec.Flush:
		return true
	case spec.Barrier:
		return o.meet(b, s)
	case spec.SemRelease, spec.SemAcquire:
		return take(o.values, s.Counters, s.Op.Kind == spec.SemRelease)
	case spec.Signal, spec.RelaxedSignal:
		o.signal(s)
		return true
	case spec.Wait, spec.RelaxedWait:
		return take(o.inbound, s.Counters, false)
	}
	for _, r := range s.Src {
		for c := r.From; r.Slot && !(s.Op.Kind == spec.PutPackets && s.Op.Via == spec.Port) && c < r.To; c++ {
			if !o.there[r.Rank()][c] {
				return false
			}
		}
	}
	if s.Paired() {
		for i := range s.Dst {
			o.write(s.Dst[i], append([]byte(nil), o.read(s.Src[i])...))
		}
	} else if len(s.Dst) > 0 {
		result := append([]byte(nil), o.read(s.Src[0])...)
		if s.Op.Kind.Reduces() && len(result) > 0 {
			var rows [][]byte
			for _, r := range s.Folds() {
				rows = append(rows, o.read(r))
			}
			enginehost.Fold(launch.Operator(s.Op.Reduce), o.dtype, result, rows...)
		}
		for _, r := range s.Dst {
			o.write(r, result)
		}
	}
	if s.Op.Kind == spec.PutWithSignal || s.Op.Kind == spec.PutWithSignalAndFlush {
		o.signal(s)
	}
	return true
}

func (o *Oracle) signal(s *program.Step) {
	for _, c := range s.Counters {
		if peer := o.program.Ends[c].Peer; peer >= 0 {
			o.inbound[peer]++
		}
	}
}

// take adds to counters, or takes from all of them if it can.
func take(values, which []int, add bool) bool {
	for _, c := range which {
		if add {
			values[c]++
		} else if values[c] == 0 {
			return false
		}
	}
	for _, c := range which {
		if !add {
			values[c]--
		}
	}
	return true
}

// meet waits until as many blocks have come to a barrier. Each comes there as often as the others.
func (o *Oracle) meet(b int, s *program.Step) bool {
	key := [2]int{s.Site.Rank, s.Op.Barrier}
	if o.barriers[key] == nil {
		o.barriers[key] = make(map[int]int)
	}
	// A block's visits, twice, and one more while it waits.
	visits := o.barriers[key]
	if visits[b]%2 == 0 {
		visits[b]++
	}
	here := 0
	for _, n := range visits {
		if n >= visits[b] {
			here++
		}
	}
	if here < s.Op.Blocks {
		return false
	}
	visits[b]++
	return true
}

func (o *Oracle) read(r program.Range) []byte {
	if r.Slot {
		return o.slots[r.Rank()][r.From:r.To]
	}
	return o.memories[r.Memory][r.From:r.To]
}

func (o *Oracle) write(r program.Range, data []byte) {
	copy(o.read(r), data)
	if !r.Slot {
		return
	}
	for c := r.From; c < r.To; c++ {
		o.there[r.Rank()][c] = true
	}
}

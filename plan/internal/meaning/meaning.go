// Package meaning computes with symbols in place of numbers: every element of every rank's input is a symbol,
// and what a plan leaves in an output says which of them were folded there. A collective is defined by what it
// leaves.
package meaning

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Value is a fold of symbols: their sum modulo 2^64, each a random number, or a set of them. Two different folds
// are equal with odds of 2^-64.
type Value uint64

// Nothing is what no operation of a launch wrote.
const Nothing Value = 0

// Symbol is an element of a rank's input.
type Symbol struct{ Rank, Cell int }

// Algebra folds values.
type Algebra struct {
	Op    spec.Reduction
	trace bool
	parts map[Value]map[Symbol]int // what a value is made of, where that is kept
}

// Of makes the algebra of a plan. One that traces can explain values, and takes longer.
func Of(f *spec.File, trace bool) *Algebra {
	a := &Algebra{Op: spec.Sum}
	if ops := Reductions(f); len(ops) > 0 {
		a.Op = ops[0]
	}
	if trace || a.Op != spec.Sum {
		a.trace, a.parts = true, make(map[Value]map[Symbol]int)
	}
	return a
}

// Reductions are those that a plan has.
func Reductions(f *spec.File) (all []spec.Reduction) {
	add := func(op *spec.Op) {
		if op.Kind.Reduces() && !slices.Contains(all, op.Reduce) {
			all = append(all, op.Reduce)
		}
	}
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			for i := range f.Ranks[r].Blocks[b].Ops {
				op := &f.Ranks[r].Blocks[b].Ops[i]
				add(op)
				for k := range op.Ops {
					add(&op.Ops[k])
				}
			}
		}
	}
	return all
}

// mix spreads the bits of a number.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Leaf is the value of a symbol.
func (a *Algebra) Leaf(s Symbol) Value {
	v := Value(mix(mix(uint64(s.Rank)+1) ^ uint64(s.Cell)))
	if a.trace {
		a.parts[v] = map[Symbol]int{s: 1}
	}
	return v
}

// Junk is a value that is no fold of inputs: what a buffer holds before, or a packet's flag as data.
func Junk(at uint64) Value { return Value(mix(at ^ 0xD1B54A32D192ED03)) }

// Fold folds values.
func (a *Algebra) Fold(op spec.Reduction, all ...Value) Value {
	if op != a.Op {
		v := uint64(op) << 32
		for _, x := range all {
			v = mix(v ^ uint64(x))
		}
		return Value(v)
	}
	if !a.trace {
		var v Value
		for _, x := range all {
			v += x
		}
		return v
	}
	sum, parts := Value(0), make(map[Symbol]int)
	for _, x := range all {
		if a.parts[x] == nil {
			sum += x // junk
		}
		for s, n := range a.parts[x] {
			parts[s] += n
		}
	}
	for s, n := range parts {
		if op != spec.Sum {
			n, parts[s] = 1, 1
		}
		sum += Value(n) * Value(mix(mix(uint64(s.Rank)+1)^uint64(s.Cell)))
	}
	a.parts[sum] = parts
	return sum
}

// Form is how a value was made: two values with one form have the same bits whatever the rounding. The form of a
// symbol is its value.
func Form(all ...Value) Value {
	if len(all) > 1 && all[0] > all[1] {
		all = slices.Clone(all)
		all[0], all[1] = all[1], all[0] // additions commute
	}
	v := uint64(len(all))
	for _, x := range all {
		v = mix(v ^ uint64(x))
	}
	return Value(v)
}

// Explain says how a value differs from a fold of symbols, if the algebra traces.
func (a *Algebra) Explain(v Value, want []Symbol) string {
	if v == Nothing {
		return "it holds what it held before the launch"
	}
	parts := a.parts[v]
	if parts == nil {
		return "it holds what is no fold of inputs"
	}
	var text []string
	left := maps.Clone(parts)
	for _, s := range want {
		switch n := left[s]; {
		case n == 0:
			text = append(text, fmt.Sprintf("that of rank %d is missing", s.Rank))
		case n > 1:
			text = append(text, fmt.Sprintf("that of rank %d is there %d times", s.Rank, n))
		}
		delete(left, s)
	}
	rest := slices.SortedFunc(maps.Keys(left), func(a, b Symbol) int {
		return (a.Rank-b.Rank)<<40 + a.Cell - b.Cell
	})
	for _, s := range rest {
		text = append(text, fmt.Sprintf("element %d of rank %d's input does not belong there", s.Cell, s.Rank))
	}
	if len(text) > 6 {
		text = append(text[:6], fmt.Sprintf("and %d more", len(text)-6))
	}
	return "of the contributions, " + strings.Join(text, ", ")
}

// Expected is the symbols of each cell of each rank's output that a collective defines. It is nil where nothing is
// defined, and an error says which buffers do not fit the collective.
func Expected(p *program.Program) (want [][][]Symbol, err error) {
	f, n, c := p.File, len(p.File.Ranks), p.Shape.Chunk
	in, out := f.Ranks[0].Input, f.Ranks[0].Output
	var fits bool
	switch f.Collective {
	case spec.AllReduce:
		fits = in == out
	case spec.AllGather:
		fits = out == n*in
	case spec.ReduceScatter:
		fits = in == n*out
	case spec.AllToAll:
		fits = in == out && in%n == 0
	case spec.Broadcast:
		return broadcast(p), nil
	default:
		return nil, nil
	}
	for r := range f.Ranks {
		fits = fits && f.Ranks[r].Input == in && f.Ranks[r].Output == out
	}
	if !fits {
		return nil, fmt.Errorf("inputs of %d chunks and outputs of %d on %d ranks are none of an %s", in, out, n,
			f.Collective)
	}
	for r := range n {
		cells := make([][]Symbol, out*c)
		for i := range cells {
			switch f.Collective {
			case spec.AllGather:
				cells[i] = []Symbol{{i / (in * c), i % (in * c)}}
			case spec.AllToAll:
				part := in / n * c
				cells[i] = []Symbol{{i / part, r*part + i%part}}
			default:
				cells[i] = make([]Symbol, n)
				for q := range n {
					cells[i][q] = Symbol{q, i}
					if f.Collective == spec.ReduceScatter {
						cells[i][q].Cell = r*out*c + i
					}
				}
			}
		}
		want = append(want, cells)
		if f.Collective == spec.AllReduce {
			for len(want) < n {
				want = append(want, cells)
			}
			break
		}
	}
	return want, nil
}

// broadcast is the input of the one rank that has one, in all outputs that are as long. Otherwise nothing is defined.
func broadcast(p *program.Program) (want [][][]Symbol) {
	root := -1
	for r := range p.File.Ranks {
		switch {
		case p.File.Ranks[r].Input == 0:
		case root >= 0:
			return nil
		default:
			root = r
		}
	}
	if root < 0 {
		return nil
	}
	cells := make([][]Symbol, p.File.Ranks[root].Input*p.Shape.Chunk)
	for i := range cells {
		cells[i] = []Symbol{{root, i}}
	}
	for r := range p.File.Ranks {
		if p.File.Ranks[r].Output != p.File.Ranks[root].Input {
			return nil
		}
		want = append(want, cells)
	}
	return want
}

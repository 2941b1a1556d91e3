package eptest

import (
	"slices"

	"github.com/weftgo/weft/ep"
)

// batch is what the reference knows of one Prepare: everybody's routing.
type batch struct {
	spec    ep.Spec
	ranks   int
	topk    [][]int32   // by rank: [tokens, k]
	weights [][]float32 // by rank: [tokens, k]
	masked  []bool
	hosts   []int // by rank; nil: all are of one
}

func (b *batch) host(rank int) int {
	if b.hosts == nil {
		return 0
	}
	return b.hosts[rank]
}

func (b *batch) local() int         { return b.spec.Experts / b.ranks }
func (b *batch) tokens(src int) int { return len(b.topk[src]) / b.spec.TopK }

// byExpert reports whether a row belongs to one selection.
func (b *batch) byExpert() bool {
	return b.spec.Layout == ep.ExpertMajor || b.spec.Layout == ep.ExpertPacked
}

// capacity is the rows of an expert's zone for ExpertMajor, of a rank for the others.
func (b *batch) capacity() int {
	if b.spec.Capacity > 0 {
		return b.spec.Capacity
	}
	all := b.ranks * b.spec.MaxTokens
	if b.spec.Layout != ep.ExpertPacked {
		return all
	}
	align := max(b.spec.Alignment, 1)
	rows := all*min(b.spec.TopK, b.local()) + b.local()*(align-1)
	for rows%align != 0 {
		rows++
	}
	return rows
}

// row is what stands in a row of a received tensor.
type row struct {
	kind    rowKind
	src     int // the rank and the token that it came from
	token   int
	k       int       // the selection, for layouts by expert
	experts []int32   // else the local expert of each selection, or -1
	weights []float32 // and its weight
}

type rowKind uint8

const (
	emptyRow rowKind = iota // must not be touched
	padRow                  // zeros
	tokenRow
)

// rowAddress is the row of a rank that a selection went to.
type rowAddress struct {
	rank, row int
	ok        bool
}

// arrivals is everything that one rank's Routing says of its own rows.
type arrivals struct {
	rows             []row // of the received tensor
	received, demand int
	counts, wanted   []int32 // by local expert: rows kept, rows routed
	padded, offsets  []int32
	sources          []int32   // tokens by source rank
	ranges           [][]int64 // [local expert][source]: begin<<32 | count
}

// prepared is the outcome of Prepare on all ranks.
type prepared struct {
	at   []arrivals     // by rank
	home [][]rowAddress // by rank: [tokens, k]
}

// prepare puts every row where it belongs, rank by rank, by walking through all tokens in order.
func (b *batch) prepare() *prepared {
	p := &prepared{at: make([]arrivals, b.ranks), home: make([][]rowAddress, b.ranks)}
	for src := range b.ranks {
		p.home[src] = make([]rowAddress, len(b.topk[src]))
	}
	for d := range b.ranks {
		if b.masked[d] {
			continue
		}
		a := &p.at[d]
		a.sources = make([]int32, b.ranks)
		for src := range b.ranks {
			if b.masked[src] {
				continue
			}
			for t := range b.tokens(src) {
				if slices.ContainsFunc(b.selected(src, t), func(e int32) bool { return e >= 0 && int(e)/b.local() == d }) {
					a.sources[src]++
				}
			}
		}
		if b.byExpert() {
			b.prepareByExpert(p, d)
		} else {
			b.prepareByRank(p, d)
		}
	}
	return p
}

// overflow is the error with which Prepare refuses more rows than there is room for: about the
// first rank, for [ep.ExpertMajor] its first expert.
func (b *batch) overflow(p *prepared) *ep.OverflowError {
	if b.spec.Overflow != ep.OverflowRefuse {
		return nil
	}
	for d := range b.ranks {
		a := &p.at[d]
		if b.spec.Layout != ep.ExpertMajor {
			if a.demand > b.capacity() {
				return &ep.OverflowError{Rank: d, Expert: -1, Demand: a.demand, Capacity: b.capacity()}
			}
			continue
		}
		for le, n := range a.wanted {
			if int(n) > b.capacity() {
				return &ep.OverflowError{Rank: d, Expert: d*b.local() + le, Demand: int(n), Capacity: b.capacity()}
			}
		}
	}
	return nil
}

func (b *batch) selected(src, token int) []int32 {
	k := b.spec.TopK
	return b.topk[src][token*k : (token+1)*k]
}

func (b *batch) prepareByExpert(p *prepared, d int) {
	a := &p.at[d]
	capacity, align := b.capacity(), max(b.spec.Alignment, 1)
	tall := capacity
	if b.spec.Layout == ep.ExpertMajor {
		tall = capacity * b.local()
	}
	a.rows = make([]row, tall)
	cursor := 0
	for le := range b.local() {
		start, limit := cursor, capacity
		if b.spec.Layout == ep.ExpertMajor {
			start, limit = le*capacity, (le+1)*capacity
		}
		next := start
		kept, wanted := 0, 0
		ranges := make([]int64, b.ranks)
		for src := range b.ranks {
			begin, here := kept, 0
			if b.masked[src] {
				ranges[src] = int64(begin) << 32
				continue
			}
			for t := range b.tokens(src) {
				for k, e := range b.selected(src, t) {
					if int(e) != d*b.local()+le {
						continue
					}
					wanted++
					if next < limit {
						a.rows[next] = row{kind: tokenRow, src: src, token: t, k: k}
						p.home[src][t*b.spec.TopK+k] = rowAddress{rank: d, row: next, ok: true}
						kept++
						here++
					}
					next++
				}
			}
			ranges[src] = int64(begin)<<32 | int64(here)
		}
		padded := kept
		if b.spec.Layout == ep.ExpertPacked {
			for (next-start)%align != 0 {
				if next < limit {
					a.rows[next].kind = padRow
				}
				next++
			}
			padded = max(0, min(next, limit)-start)
			a.demand = next
			a.received = min(next, limit)
		} else {
			a.demand += wanted
			a.received += kept
		}
		cursor = next
		a.counts = append(a.counts, int32(kept))
		a.wanted = append(a.wanted, int32(wanted))
		a.padded = append(a.padded, int32(padded))
		a.offsets = append(a.offsets, int32(start))
		a.ranges = append(a.ranges, ranges)
	}
	if b.spec.Layout == ep.ExpertPacked && b.spec.Counts == ep.HostCounts {
		a.rows = a.rows[:a.received]
	}
}

func (b *batch) prepareByRank(p *prepared, d int) {
	a := &p.at[d]
	capacity := b.capacity()
	a.rows = make([]row, capacity)
	a.counts = make([]int32, b.local())
	a.wanted = make([]int32, b.local())
	a.padded = make([]int32, b.local())
	a.offsets = make([]int32, b.local())
	next := 0
	for src := range b.ranks {
		if b.masked[src] {
			continue
		}
		for t := range b.tokens(src) {
			if b.spec.Layout == ep.RankMajor {
				next = src*b.spec.MaxTokens + t
			}
			r := row{
				kind: tokenRow, src: src, token: t, k: -1, experts: make([]int32, b.spec.TopK),
				weights: make([]float32, b.spec.TopK),
			}
			here := false
			for k, e := range b.selected(src, t) {
				r.experts[k] = -1
				if e < 0 || int(e)/b.local() != d {
					continue
				}
				here = true
				le := int(e) % b.local()
				r.experts[k], r.weights[k] = int32(le), b.weights[src][t*b.spec.TopK+k]
				for _, c := range [][]int32{a.counts, a.wanted, a.padded} {
					c[le]++
				}
				if next < capacity {
					p.home[src][t*b.spec.TopK+k] = rowAddress{rank: d, row: next, ok: true}
				}
			}
			if !here {
				continue
			}
			a.demand++
			if next < capacity {
				a.received++
				a.rows[next] = r
			}
			next++
		}
	}
	if b.spec.Layout == ep.TokenMajor && b.spec.Counts == ep.HostCounts {
		a.rows = a.rows[:a.received]
	}
}

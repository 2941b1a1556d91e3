package ep

import "github.com/weftgo/weft"

// geometry is where rows stand: pure functions of the Spec and of everyone's counts, so that the
// rank that sends a row and the rank that receives it find the same place without asking each
// other.
type geometry struct {
	ranks, experts, local int // local = experts / ranks
	topk, tokens          int // tokens = MaxTokens
	layout                Layout
	align                 int
	capacity              int // rows per expert for ExpertMajor, else rows per rank
}

func newGeometry(s Spec, ranks int) geometry {
	g := geometry{
		ranks: ranks, experts: s.Experts, local: s.Experts / ranks, topk: s.TopK, tokens: s.MaxTokens,
		layout: s.Layout, align: s.Alignment, capacity: s.Capacity,
	}
	if g.capacity == 0 {
		g.capacity = int(worst(s, ranks))
	}
	return g
}

// worst is the most rows that can arrive: at an expert for ExpertMajor, else at a rank. Until a
// Spec is found to be good the number may be larger than an int of 32 bits.
func worst(s Spec, ranks int) int64 {
	all := int64(ranks) * int64(s.MaxTokens)
	if s.Layout == ExpertPacked {
		// Every token selects as many local experts as it can, and every zone wastes as many pads
		// as it can.
		local, align := int64(s.Experts/ranks), int64(s.Alignment)
		rows := all*min(int64(s.TopK), local) + (align-1)*local
		return (rows + align - 1) / align * align
	}
	return all
}

// mostRows is the number of rows of a received tensor at its largest, with the same proviso.
func mostRows(s Spec, ranks int) int64 {
	rows := int64(s.Capacity)
	if rows == 0 {
		rows = worst(s, ranks)
	}
	if s.Layout == ExpertMajor {
		rows *= int64(s.Experts / ranks)
	}
	return rows
}

// rows is the number of rows of a received tensor at its largest.
func (g *geometry) rows() int {
	if g.layout == ExpertMajor {
		return g.local * g.capacity
	}
	return g.capacity
}

// windowSizes are the bytes of a handle's windows; 0 for those that it has no use for.
type windowSizes struct {
	board   int64
	block   int64 // of one received tensor, of which the pool has Live
	stage   int64
	partial int64
	scalars int64
}

// windowSizes computes them. The limits of a Spec's numbers keep every one of them within 64 bits.
func (g *geometry) windowSizes(s Spec) windowSizes {
	tokens, rows := int64(g.tokens), int64(g.rows())
	row, scale, output := int64(s.rowBytes()), int64(s.scaleBytes()), int64(s.outputBytes())
	size := windowSizes{
		board: g.boardSize(),
		block: newBlockShape(s, g.rows()).bytes,
		// What is staged: the tokens of a dispatch, quantised or not, or the rows of a combine. One
		// buffer serves both, as operations follow each other.
		stage: tokens * max(align(row)+align(scale), output),
	}
	if !s.combines() {
		return size
	}
	size.stage = max(size.stage, rows*output)
	if s.Reduction != Exact && s.Layout.byExpert() {
		size.partial = int64(g.ranks) * tokens * output
	}
	perRow := int64(1)
	if !s.Layout.byExpert() {
		perRow = int64(s.TopK)
	}
	size.scalars = rows * perRow * 4
	return size
}

// fit reports whether windows of these sizes can be had in an address space of so many bytes, of
// which half is the system's.
func (w *windowSizes) fit(live int, addresses int64) bool {
	return max(w.board, w.stage, w.partial, w.scalars) <= addresses/2 && w.block <= addresses/2/int64(live)
}

// zones describes the rows of one rank's experts.
type zones struct {
	start  []int32 // first row of each local expert
	demand []int32 // rows routed there
	kept   []int32 // rows that fit
	padded []int32 // rows of the zone that exist, pads included
	total  int     // rows routed to the rank, pads included
	rows   int     // rows that fit, pads included
}

// expertZones computes the zones of rank d from total, the selections of every expert by all ranks.
func (g *geometry) expertZones(z *zones, d int, total []int32) {
	total = total[d*g.local : (d+1)*g.local]
	z.total, z.rows = 0, 0
	switch g.layout {
	case ExpertMajor:
		for le, demand := range total {
			z.demand[le] = demand
			z.start[le] = int32(le * g.capacity)
			kept := min(demand, int32(g.capacity))
			z.kept[le], z.padded[le] = kept, kept
			z.total += int(demand)
			z.rows += int(kept)
		}
	case ExpertPacked:
		next := 0
		for le, demand := range total {
			size := (int(demand) + g.align - 1) / g.align * g.align
			z.demand[le] = demand
			z.start[le] = int32(next)
			z.kept[le] = int32(max(0, min(int(demand), g.capacity-next)))
			z.padded[le] = int32(max(0, min(size, g.capacity-next)))
			next += size
		}
		z.total, z.rows = next, min(next, g.capacity)
	default:
		for le, demand := range total {
			z.start[le], z.demand[le], z.kept[le], z.padded[le] = 0, demand, demand, demand
		}
	}
}

// overflow finds the first rank, and for ExpertMajor its first expert, whose demand exceeds the
// capacity; total are the selections of every expert, visits the tokens for every rank, by all
// ranks. Nothing goes to masked ranks.
func (g *geometry) overflow(total, visits []int32, masked weft.RankSet, z *zones) *OverflowError {
	live := func(d int) bool { return !masked.Has(d) }
	switch g.layout {
	case ExpertMajor:
		for e, demand := range total {
			if int(demand) > g.capacity && live(e/g.local) {
				return &OverflowError{Rank: e / g.local, Expert: e, Demand: int(demand), Capacity: g.capacity}
			}
		}
	case ExpertPacked:
		for d := range g.ranks {
			if g.expertZones(z, d, total); z.total > g.capacity && live(d) {
				return &OverflowError{Rank: d, Expert: -1, Demand: z.total, Capacity: g.capacity}
			}
		}
	case TokenMajor:
		for d, demand := range visits {
			if int(demand) > g.capacity && live(d) {
				return &OverflowError{Rank: d, Expert: -1, Demand: int(demand), Capacity: g.capacity}
			}
		}
	}
	return nil
}

// sum adds up rows of counts, nil for masked ranks, into total; before receives the sums of the
// rows below me.
func sum(total, before []int32, counts [][]int32, me int) {
	clear(total)
	for src, c := range counts {
		if src == me {
			copy(before, total)
		}
		if c == nil {
			continue
		}
		c = c[:len(total)]
		for i := range total {
			total[i] += c[i]
		}
	}
}

func align[T int | int64](n T) T { return (n + 63) &^ 63 }

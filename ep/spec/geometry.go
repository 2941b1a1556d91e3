package spec

import "github.com/weftgo/weft"

// Geometry says where rows stand, by pure functions of the Spec and of all ranks' counts. The sender
// and the receiver of a row therefore compute the same row number without an exchange.
type Geometry struct {
	Ranks, Experts, Local int // local = experts / ranks
	TopK, Tokens          int // tokens = MaxTokens
	Layout                Layout
	Align                 int
	Capacity              int // rows per expert for ExpertMajor, else rows per rank
}

func NewGeometry(s Spec, ranks int) Geometry {
	g := Geometry{
		Ranks: ranks, Experts: s.Experts, Local: s.Experts / ranks, TopK: s.TopK, Tokens: s.MaxTokens,
		Layout: s.Layout, Align: s.Alignment, Capacity: s.Capacity,
	}
	if g.Capacity == 0 {
		g.Capacity = int(worst(s, ranks))
	}
	return g
}

// worst is the most rows that can arrive: at an expert for ExpertMajor, else at a rank. It has 64
// bits because a Spec that is not yet validated may exceed 32.
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

// mostRows is the number of rows of the largest received tensor, in 64 bits for the same reason.
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

// Rows is the number of rows of the largest received tensor.
func (g *Geometry) Rows() int {
	if g.Layout == ExpertMajor {
		return g.Local * g.Capacity
	}
	return g.Capacity
}

// Zones describes the rows of one rank's experts.
type Zones struct {
	Start  []int32 // first row of each local expert
	Demand []int32 // rows routed there
	Kept   []int32 // rows that fit
	Padded []int32 // rows of the zone that exist, pads included
	Total  int     // rows routed to the rank, pads included
	Rows   int     // rows that fit, pads included
}

// ExpertZones computes the zones of rank d from total, the selections of every expert by all ranks.
func (g *Geometry) ExpertZones(z *Zones, d int, total []int32) {
	total = total[d*g.Local : (d+1)*g.Local]
	z.Total, z.Rows = 0, 0
	switch g.Layout {
	case ExpertMajor:
		for le, demand := range total {
			z.Demand[le] = demand
			z.Start[le] = int32(le * g.Capacity)
			kept := min(demand, int32(g.Capacity))
			z.Kept[le], z.Padded[le] = kept, kept
			z.Total += int(demand)
			z.Rows += int(kept)
		}
	case ExpertPacked:
		next := 0
		for le, demand := range total {
			size := (int(demand) + g.Align - 1) / g.Align * g.Align
			z.Demand[le] = demand
			z.Start[le] = int32(next)
			z.Kept[le] = int32(max(0, min(int(demand), g.Capacity-next)))
			z.Padded[le] = int32(max(0, min(size, g.Capacity-next)))
			next += size
		}
		z.Total, z.Rows = next, min(next, g.Capacity)
	default:
		for le, demand := range total {
			z.Start[le], z.Demand[le], z.Kept[le], z.Padded[le] = 0, demand, demand, demand
		}
	}
}

// Overflow finds the first rank, and for ExpertMajor its first expert, whose demand exceeds the
// capacity. total has the selections of every expert, visits the tokens for every rank, summed over
// all ranks. Masked ranks receive nothing.
func (g *Geometry) Overflow(total, visits []int32, masked weft.RankSet, z *Zones) *OverflowError {
	live := func(d int) bool { return !masked.Has(d) }
	switch g.Layout {
	case ExpertMajor:
		for e, demand := range total {
			if int(demand) > g.Capacity && live(e/g.Local) {
				return &OverflowError{Rank: e / g.Local, Expert: e, Demand: int(demand), Capacity: g.Capacity}
			}
		}
	case ExpertPacked:
		for d := range g.Ranks {
			if g.ExpertZones(z, d, total); z.Total > g.Capacity && live(d) {
				return &OverflowError{Rank: d, Expert: -1, Demand: z.Total, Capacity: g.Capacity}
			}
		}
	case TokenMajor:
		for d, demand := range visits {
			if int(demand) > g.Capacity && live(d) {
				return &OverflowError{Rank: d, Expert: -1, Demand: int(demand), Capacity: g.Capacity}
			}
		}
	}
	return nil
}

// SumCounts adds up rows of counts, nil for masked ranks, into total; before receives the sums of the
// rows below me.
func SumCounts(total, before []int32, counts [][]int32, me int) {
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

func AlignUp[T int | int64](n T) T { return (n + 63) &^ 63 }

func NewZones(local int) Zones {
	buf := make([]int32, 4*local)
	return CarveZones(&buf, local)
}

func CarveZones(buf *[]int32, local int) Zones {
	return Zones{Start: Carve(buf, local), Demand: Carve(buf, local), Kept: Carve(buf, local), Padded: Carve(buf, local)}
}

// Carve cuts n numbers off the front of buf.
func Carve(buf *[]int32, n int) []int32 {
	s := (*buf)[:n:n]
	*buf = (*buf)[n:]
	return s
}

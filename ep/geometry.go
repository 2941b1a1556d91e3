package ep

// geometry is where rows stand: pure functions of the Spec and of everyone's counts, so that the rank that sends a row and the rank that
// receives it find the same place without asking each other.
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
		g.capacity = g.worst()
	}
	return g
}

// worst is the most rows that can arrive: at an expert for ExpertMajor, else at a rank.
func (g *geometry) worst() int {
	all := g.ranks * g.tokens
	if g.layout == ExpertPacked {
		// Every token selects as many local experts as it can, and every zone wastes as many pads as it can.
		rows := all*min(g.topk, g.local) + (g.align-1)*g.local
		return (rows + g.align - 1) / g.align * g.align
	}
	return all
}

// rows is the number of rows of a received tensor at its largest.
func (g *geometry) rows() int {
	if g.layout == ExpertMajor {
		return g.local * g.capacity
	}
	return g.capacity
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

// expertZones computes the zones of rank d; counts[src] are the selections that src made of each expert, nil for a masked rank.
func (g *geometry) expertZones(z *zones, d int, counts [][]int32) {
	next := 0
	z.total, z.rows = 0, 0
	for le := range g.local {
		demand := int32(0)
		for _, c := range counts {
			if c != nil {
				demand += c[d*g.local+le]
			}
		}
		z.demand[le] = demand
		if !g.layout.byExpert() {
			z.start[le], z.kept[le], z.padded[le] = 0, demand, demand
			continue
		}
		if g.layout == ExpertMajor {
			z.start[le] = int32(le * g.capacity)
			z.kept[le] = min(demand, int32(g.capacity))
			z.padded[le] = z.kept[le]
			z.total += int(demand)
			z.rows += int(z.kept[le])
			continue
		}
		size := (int(demand) + g.align - 1) / g.align * g.align
		z.start[le] = int32(next)
		z.kept[le] = int32(max(0, min(int(demand), g.capacity-next)))
		z.padded[le] = int32(max(0, min(size, g.capacity-next)))
		next += size
		z.total = next
		z.rows = min(next, g.capacity)
	}
}

// overflow finds the first rank, and for ExpertMajor its first expert, whose demand exceeds the capacity.
func (g *geometry) overflow(counts, distinct [][]int32, z *zones) *OverflowError {
	for d := range g.ranks {
		switch g.layout {
		case ExpertMajor:
			for le := range g.local {
				demand := 0
				for _, c := range counts {
					if c != nil {
						demand += int(c[d*g.local+le])
					}
				}
				if demand > g.capacity {
					return &OverflowError{Rank: d, Expert: d*g.local + le, Demand: demand, Capacity: g.capacity}
				}
			}
		case ExpertPacked:
			if g.expertZones(z, d, counts); z.total > g.capacity {
				return &OverflowError{Rank: d, Expert: -1, Demand: z.total, Capacity: g.capacity}
			}
		case TokenMajor:
			demand := 0
			for _, c := range distinct {
				if c != nil {
					demand += int(c[d])
				}
			}
			if demand > g.capacity {
				return &OverflowError{Rank: d, Expert: -1, Demand: demand, Capacity: g.capacity}
			}
		}
	}
	return nil
}

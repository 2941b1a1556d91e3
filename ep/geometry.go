package ep

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
func (g *geometry) overflow(total, visits []int32, masked uint64, z *zones) *OverflowError {
	live := func(d int) bool { return masked>>uint(d)&1 == 0 }
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

func newZones(local int) zones {
	buf := make([]int32, 4*local)
	return carveZones(&buf, local)
}

func carveZones(buf *[]int32, local int) zones {
	return zones{start: carve(buf, local), demand: carve(buf, local), kept: carve(buf, local), padded: carve(buf, local)}
}

// carve cuts n numbers off the front of buf.
func carve(buf *[]int32, n int) []int32 {
	s := (*buf)[:n:n]
	*buf = (*buf)[n:]
	return s
}

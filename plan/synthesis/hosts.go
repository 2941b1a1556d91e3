package synthesis

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/spec"
)

// hosts divides a topology into groups of ranks such that links within groups are faster than those between them: all
// ranks of a group have links to each other, and those of one position in all groups. It is nil where none are.
func hosts(t *cost.Topology) [][]int {
	links := make(map[[2]int]float64)
	var delays []float64
	for _, l := range t.Working() {
		links[[2]int{l.From, l.To}] = l.Us
		delays = append(delays, l.Us)
	}
	slices.Sort(delays)
	for _, far := range slices.Backward(slices.Compact(delays)) {
		groups := groupsOf(t.Ranks, func(a, b int) bool {
			us, linked := links[[2]int{a, b}]
			return linked && us < far
		})
		linked := func(a, b int) bool { _, ok := links[[2]int{a, b}]; return ok }
		if len(groups) > 1 && len(groups[0]) > 1 && regular(groups, linked) {
			return groups
		}
	}
	return nil
}

// groupsOf is what a relation holds together, each group in the order of ranks.
func groupsOf(ranks int, near func(a, b int) bool) (groups [][]int) {
	of := make([]int, ranks)
	for r := range of {
		of[r] = r
	}
	for range ranks {
		for a := range ranks {
			for b := range ranks {
				if near(a, b) || near(b, a) {
					least := min(of[a], of[b])
					of[a], of[b] = least, least
				}
			}
		}
	}
	at := make(map[int]int)
	for r, first := range of {
		if _, known := at[first]; !known {
			at[first] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[first]] = append(groups[at[first]], r)
	}
	return groups
}

// regular says whether groups are of one size, with the links that sums between them take.
func regular(groups [][]int, linked func(a, b int) bool) bool {
	if slices.ContainsFunc(groups, func(g []int) bool { return len(g) != len(groups[0]) }) {
		return false
	}
	for _, g := range groups {
		for i, a := range g {
			for _, b := range g {
				if a != b && !linked(a, b) {
					return false
				}
			}
			for _, other := range groups {
				if other[0] != g[0] && !linked(a, other[i]) {
					return false
				}
			}
		}
	}
	return true
}

// agree says whether groups are the hosts that a topology names, if it names any.
func agree(groups [][]int, t *cost.Topology) bool {
	if len(t.Hosts) == 0 {
		return true
	}
	for i, g := range groups {
		for j, other := range groups {
			for _, a := range g {
				for _, b := range other {
					if t.Far(a, b) != (i != j) {
						return false
					}
				}
			}
		}
	}
	return true
}

// exchanged makes an all-reduce whose hosts exchange their sums, as packets. Each rank of a host adds up a chunk of all
// of the host's ranks, gives the sum to the ranks of its position on other hosts, adds up theirs, and gives the result
// to its host. So data crosses between hosts once, where a tree with one root does it twice. All of that is done factor
// times, each by a block of its own.
func exchanged(name string, groups [][]int, factor int, apart func(a, b int) bool) (*plan.File, error) {
	local := len(groups[0])
	n := len(groups) * local
	p := plan.New(name, plan.Custom(spec.AllReduce, n, local*factor, local*factor), plan.Options{
		Protocol: plan.LL, DoubleScratch: true,
	})
	to := make(map[[2]int]*plan.Channel)
	channel := func(a, b int) {
		if apart(a, b) {
			to[[2]int{a, b}] = p.Port(a, b)
		} else {
			to[[2]int{a, b}] = p.Memory(a, b)
		}
	}
	for h, g := range groups {
		for i, a := range g {
			for _, b := range g {
				if a != b {
					channel(a, b)
				}
			}
			for k, other := range groups {
				if k != h {
					channel(a, other[i])
				}
			}
		}
	}
	inputs, sums, results := make([]plan.Buffer, n), make([]plan.Buffer, n), make([]plan.Buffer, n)
	mine := make([]plan.Buffer, n) // packets for other hosts
	for r := range n {
		inputs[r] = p.Rank(r).Scratch(local * factor)
		sums[r] = p.Rank(r).Scratch(len(groups) * factor)
		results[r] = p.Rank(r).Scratch(local * factor)
	}
	for h, g := range groups {
		for i, r := range g {
			if apart(r, groups[(h+1)%len(groups)][i]) {
				mine[r] = p.Rank(r).Scratch(factor)
			}
		}
	}
	for h, g := range groups {
		for at, r := range g {
			in, out := p.Rank(r).Input(), p.Rank(r).Output()
			for k := range factor {
				b, own := p.Rank(r).Block(k), k*local+at
				// The ranks behind this one come first, so not all send to one rank at once.
				var near, far []int
				for i := 1; i < local; i++ {
					near = append(near, (at+i)%local)
				}
				for i := 1; i < len(groups); i++ {
					far = append(far, (h+i)%len(groups))
				}
				for _, q := range near {
					b.PutPackets(to[[2]int{r, g[q]}], inputs[g[q]].Chunk(own, 1), in.Chunk(k*local+q, 1))
				}
				var slots []plan.Chunk
				for _, q := range near {
					slots = append(slots, inputs[r].Chunk(k*local+q, 1))
				}
				b.ReducePackets(out.Chunk(own, 1), in.Chunk(own, 1), slots...)
				slots = nil
				copied, ports := false, []*plan.Channel(nil)
				for _, q := range far {
					peer := groups[q][at]
					c, data := to[[2]int{r, peer}], out.Chunk(own, 1)
					if apart(r, peer) { // a port takes packets
						data = mine[r].Chunk(k, 1)
						if !copied {
							b.CopyPackets(data, out.Chunk(own, 1))
						}
						copied, ports = true, append(ports, c)
					}
					b.PutPackets(c, sums[peer].Chunk(k*len(groups)+h, 1), data)
					slots = append(slots, sums[r].Chunk(k*len(groups)+q, 1))
				}
				b.ReducePackets(out.Chunk(own, 1), out.Chunk(own, 1), slots...)
				for _, q := range near {
					b.PutPackets(to[[2]int{r, g[q]}], results[g[q]].Chunk(own, 1), out.Chunk(own, 1))
				}
				for _, q := range near {
					b.UnpackPackets(out.Chunk(k*local+q, 1), results[r].Chunk(k*local+q, 1))
				}
				if len(ports) > 0 {
					b.Flush(ports...)
				}
			}
		}
	}
	return p.Build()
}

// exchanges are plans of an all-reduce whose hosts exchange sums, if there are hosts.
func (x *search) exchanges(add func(f *plan.File, chunks, sends int, form string) error) error {
	if x.Collective != spec.AllReduce || x.RankOrder {
		return nil
	}
	groups := hosts(x.Topology)
	if groups == nil || !agree(groups, x.Topology) {
		return nil
	}
	local := len(groups[0])
	for _, factor := range []int{1, 2, 3, 4, 6, 8, 12, 16} {
		chunks := local * factor
		sends := chunks * (2*(local-1) + len(groups) - 1) * len(groups)
		if factor > 1 && x.Bytes < chunks*align || sends > most {
			break
		}
		f, err := exchanged(x.name(), groups, factor, x.Topology.Far)
		if err != nil {
			return fmt.Errorf("synthesis: %w", err)
		}
		if err := add(f, chunks, sends, fmt.Sprintf("packets in %d chunks, hosts exchange sums", chunks)); err != nil {
			return err
		}
	}
	return nil
}

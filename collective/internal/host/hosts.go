package host

import (
	"context"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// hosts is what an engine has beside where its ranks are on several hosts. A nil one is of one host.
type hosts struct {
	within *enginehost.Rounds // of this host's ranks

	generation uint64
	live       [][]int // of each host that has any, its live ranks, as indices among all
	here       int     // this host's index in live
	self       int     // this rank's in that

	partials []byte // of each host, of a block
	rows     [][]byte
	sums     [][]byte
	wide     []byte
}

// manyMirrors is how many ranks of other hosts there may be before each has less memory here: what a rank keeps of
// all of them is a multiple of what it has for itself.
const manyMirrors = 8

func spannedScratch(comm *weft.Comm, scratch int) int {
	others := comm.Size() - comm.LocalSize()
	return scratch * manyMirrors / max(others, manyMirrors)
}

func newHosts(ctx context.Context, comm *weft.Comm, ring int) (*hosts, error) {
	rounds, err := enginehost.New(ctx, comm, enginehost.Config{
		Kind: "group", Ring: ring, Within: true, Differs: spec.Differ,
	})
	return &hosts{within: rounds}, err
}

func (h *hosts) close() error {
	if h == nil {
		return nil
	}
	return h.within.Window.Close()
}

// begin follows the communicator to its generation.
func (h *hosts) begin(c *call, op string) error {
	if err := h.within.Begin(op); err != nil {
		return err
	}
	g := c.Comm.Operations().Generation()
	if g == h.generation && len(h.live) > 0 {
		return nil
	}
	h.generation = g
	h.live = h.live[:0]
	for host, ranks := range c.Rounds.Hosts() {
		if len(ranks) == 0 {
			continue
		}
		if host == c.Comm.Host(c.Comm.Rank()) {
			h.here = len(h.live)
			h.self, _ = slices.BinarySearch(ranks, c.Comm.Rank())
		}
		var list []int
		if len(h.live) < cap(h.live) {
			list = h.live[:len(h.live)+1][len(h.live)][:0]
		}
		for _, r := range ranks {
			i, _ := slices.BinarySearch(c.Live, r)
			list = append(list, i)
		}
		h.live = append(h.live, list)
	}
	return nil
}

// count is the number of hosts that have live ranks; 0 where all share memory.
func (h *hosts) count() int {
	if h == nil {
		return 0
	}
	return len(h.live)
}

// least is the number of live ranks of the host that has the fewest.
func (h *hosts) least() int {
	n := len(h.live[0])
	for _, ranks := range h.live {
		n = min(n, len(ranks))
	}
	return n
}

// orders says whether a call's elements are folded host by host. The order of others makes no difference, or they
// are folded all at once: averages of integers divide the exact sum.
func (h *hosts) orders(c *call) bool {
	return h.count() > 1 && enginehost.Arithmetic(c.DType).Float()
}

// Foldings of a call: of the inputs of a host's ranks, and of what came of that.
func (c *call) foldingWithin() enginehost.Folding {
	f := c.folding()
	if f.Op == weft.Avg {
		f.Op = weft.Sum
	}
	return f
}

func (c *call) foldingAcross() enginehost.Folding {
	f := c.folding()
	switch f.Op {
	case weft.PreMulSum:
		f.Op = weft.Sum
	case weft.Avg:
		f.By = c.Ranks
	default:
	}
	return f
}

// foldBlock is how many bytes are folded at once: what is between stays in a cache.
const foldBlock = 16 << 10

// fold folds rows of all ranks host by host: those of a host in rank order, rounded, then the hosts' in their order,
// rounded once more.
func (h *hosts) fold(c *call, dst []byte, rows [][]byte) {
	h.partials = grown(h.partials, len(h.live)*foldBlock)
	within, across := c.foldingWithin(), c.foldingAcross()
	for at := 0; at < len(dst); at += foldBlock {
		n := min(foldBlock, len(dst)-at)
		h.sums = h.sums[:0]
		for k, ranks := range h.live {
			h.rows = h.rows[:0]
			for _, i := range ranks {
				h.rows = append(h.rows, rows[i][at:at+n])
			}
			h.sums = append(h.sums, h.partial(c, within, h.partials[k*foldBlock:][:n], h.rows))
		}
		c.moves.Reduce(across, dst[at:at+n], h.sums, false)
	}
}

// partial is the fold of a host's rows: of one row that row, or else made in dst. Rounding makes numbers of the
// infinities of e5m2, of one row too.
func (h *hosts) partial(c *call, f enginehost.Folding, dst []byte, rows [][]byte) []byte {
	if len(rows) == 1 && f.Op != weft.PreMulSum && f.DType != weft.Float8E5M2 {
		return rows[0]
	}
	c.moves.Reduce(f, dst, rows, false)
	return dst
}

// limit says which part of the next round's payload of n bytes each host needs: what place says of its ranks, or,
// without it, all of it where some rank has an output.
func (c *call) limit(n int, place func(i int) (from, to int)) {
	if c.hosts == nil {
		return
	}
	for _, ranks := range c.hosts.live {
		from, to := n, 0
		for _, i := range ranks {
			switch {
			case place != nil:
				a, b := place(i)
				from, to = min(from, a), max(to, b)
			case c.Collective.HasOutput(c.Live[i], c.Root):
				from, to = 0, n
			}
		}
		c.Limit(c.Comm.Host(c.Live[ranks[0]]), min(from, to), to)
	}
}

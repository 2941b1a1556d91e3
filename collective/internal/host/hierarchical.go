package host

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// hierarchical reduces between hosts. In each step a host's ranks fold what they have, a chunk each, in rank order;
// then the hosts' partials of each chunk are folded in the order of the hosts. Partials are rounded to the elements'
// type.
//
// An all-reduce on H hosts folds each H-th of a chunk on one host, and sends the results back: 2(H-1)/H of the
// operand leave each host, which is the least. On two hosts each folds all by itself, which sends as much in half of
// the trips. A reduce sends the root's host a partial of each other one.
//
// As many ranks of each host take part in the folding as the smallest has; ranks that have no chunk stage and copy.
var hierarchical = form{
	name: "hierarchical", supports: betweenHosts, demands: demandsHosts, cost: costBetween,
	run: func(ctx context.Context, c *call) error { return c.reduceByHost(ctx, false) },
}

// hierarchicalExact is hierarchical with partials in fp32: results are rounded once, and differ from hierarchical's.
// Elements of 2 bytes send twice as much to where they are folded.
var hierarchicalExact = form{
	name: "hierarchical-exact", supports: betweenHosts, demands: demandsHosts,
	tags: map[string]string{"opt-in": "sums are rounded once between hosts, so their bits are not those of the others"},
	run:  func(ctx context.Context, c *call) error { return c.reduceByHost(ctx, true) },
}

const demandsHosts = "reduces between hosts, and averages floats alone"

func betweenHosts(q spec.Request) bool {
	return q.Hosts > 1 && (q.Op != weft.Avg || enginehost.Arithmetic(q.DType).Float())
}

// costBetween is compared with what eager takes within a host, as the table has it: their lines cross at about 16 KiB.
// What is smaller is eager between hosts, too, for that has one trip.
func costBetween(q spec.Request, _ *spec.Model) float64 { return 2 + 1e-6*float64(q.Sent) }

// notBetween is what forms support that no host's ranks have to fold first. Between hosts they would send each
// input to each host; for averages of integers, which divide the exact sum, they do.
func notBetween(q spec.Request) bool {
	return q.Hosts <= 1 || !q.Collective.Reduces() || !betweenHosts(q)
}

const demandsOneHost = "reduces where all ranks share memory, and between hosts averages of integers alone"

func (c *call) reduceByHost(ctx context.Context, exact bool) error {
	switch c.Collective {
	case spec.ReduceScatter, spec.ReduceScatterV:
		return c.scatterByHost(ctx, exact)
	case spec.Reduce:
		return c.gatherByHost(ctx, exact)
	default:
		if len(c.hosts.live) == 2 {
			return c.gatherByHost(ctx, exact)
		}
		return c.exchangeByHost(ctx, exact)
	}
}

// chunk is this host's part of the work on a step of n bytes: what this rank folds. It is empty on ranks that no
// chunk is for.
func (h *hosts) chunk(n int) (from, to int) {
	if j := h.least(); h.self < j {
		return chunkOf(h.self, j, n)
	}
	return 0, 0
}

// rank is the rank that folds the j-th chunk of a host.
func (h *hosts) rank(c *call, host, j int) int { return c.Live[h.live[host][j]] }

// number is the communicator's number of a host.
func (h *hosts) number(c *call, host int) int { return c.Comm.Host(h.rank(c, host, 0)) }

// gather folds this host's inputs for its chunk of a step, and returns nil if that is empty.
func (h *hosts) gather(ctx context.Context, c *call, f partials, at, n int) ([]byte, error) {
	from, to := h.chunk(n)
	round := uint64(0)
	if ranks := h.live[h.here]; len(ranks) > 1 {
		in, stage := c.in[at:at+n], h.within.Fill(n)
		c.stage(stage[:from], in[:from])
		c.stage(stage[to:], in[to:])
		round = h.within.Publish()
		if err := h.within.Await(ctx, c.name, round); err != nil {
			return nil, err
		}
	}
	if from == to {
		return nil, nil
	}
	h.rows = h.rows[:0]
	for k, i := range h.live[h.here] {
		if k == h.self {
			h.rows = append(h.rows, c.in[at+from:at+to])
		} else {
			h.rows = append(h.rows, h.within.Payload(c.Live[i], round, n)[from:to])
		}
	}
	partial := c.Fill(f.bytes(to - from))
	f.within(partial, h.rows)
	return partial, nil
}

// across folds the hosts' partials, of n bytes each, for elements [from, to) of this rank's chunk.
func (h *hosts) across(c *call, f partials, dst []byte, round uint64, n, from, to int) {
	h.rows = h.rows[:0]
	for k := range h.live {
		h.rows = append(h.rows, c.Payload(h.rank(c, k, h.self), round, f.bytes(n))[f.bytes(from):f.bytes(to)])
	}
	f.across(dst, h.rows)
}

// stepOf is how many bytes of the operand a step has, if a payload of a rank may have to hold the partial of all.
func (c *call) stepOf(f partials) int { return max(c.step(tuning.HierarchicalStep)/f.ratio()&^63, 64) }

// ahead goes through an operand by steps: begin publishes one, and end gets its round once all have published it.
// The next one begins before that, so that it is on its way meanwhile.
func (c *call) ahead(ctx context.Context, size int, begin func(at int) error,
	end func(at int, round uint64) error,
) error {
	for at := 0; at < c.Bytes; at += size {
		if at == 0 {
			if err := begin(0); err != nil {
				return err
			}
		}
		round := c.Last()
		if at+size < c.Bytes {
			if err := begin(at + size); err != nil {
				return err
			}
		}
		if err := c.Await(ctx, c.name, round); err != nil {
			return err
		}
		if err := end(at, round); err != nil {
			return err
		}
	}
	return nil
}

// gatherByHost has each host that needs the result fold all partials.
func (c *call) gatherByHost(ctx context.Context, exact bool) error {
	h, f := c.hosts, c.partialsOf(exact)
	needs := c.Collective == spec.AllReduce
	for _, i := range h.live[h.here] {
		needs = needs || c.Live[i] == c.Root
	}
	size := c.stepOf(f)
	begin := func(at int) error {
		partial, err := h.gather(ctx, c, f, at, min(size, c.Bytes-at))
		if err != nil {
			return err
		}
		if partial != nil {
			c.limit(len(partial), nil)
		}
		c.Publish()
		return nil
	}
	return c.ahead(ctx, size, begin, func(at int, round uint64) error {
		n := min(size, c.Bytes-at)
		if !needs {
			return nil
		}
		from, to := h.chunk(n)
		alone := len(h.live[h.here]) == 1
		switch {
		case alone:
			h.across(c, f, c.out[at:at+n], round, n, 0, n)
			return nil
		case to > from:
			h.across(c, f, h.within.Fill(to-from), round, to-from, 0, to-from)
		}
		results := h.within.Publish()
		if err := h.within.Await(ctx, c.name, results); err != nil {
			return err
		}
		for j := 0; j < h.least() && c.out != nil; j++ {
			from, to := chunkOf(j, h.least(), n)
			c.copy(c.out[at+from:at+to], h.within.Payload(h.rank(c, h.here, j), results, to-from))
		}
		return nil
	})
}

// exchangeByHost has each host fold its share of each chunk, and tell the others.
func (c *call) exchangeByHost(ctx context.Context, exact bool) error {
	h, f := c.hosts, c.partialsOf(exact)
	count := len(h.live)
	size := c.stepOf(f)
	begin := func(at int) error {
		n := min(size, c.Bytes-at)
		partial, err := h.gather(ctx, c, f, at, n)
		if err != nil {
			return err
		}
		if partial != nil {
			from, to := h.chunk(n)
			for k := range h.live {
				a, b := chunkOf(k, count, to-from)
				c.Limit(h.number(c, k), f.bytes(a), f.bytes(b))
			}
		}
		c.Publish()
		return nil
	}
	if c.Bytes > 0 {
		if err := begin(0); err != nil {
			return err
		}
	}
	for at := 0; at < c.Bytes; at += size {
		n, round := min(size, c.Bytes-at), c.Last()
		if err := c.Await(ctx, c.name, round); err != nil {
			return err
		}
		from, to := h.chunk(n)
		if a, b := chunkOf(h.here, count, to-from); b > a {
			h.across(c, f, c.Fill(b-a), round, to-from, a, b)
		}
		results := c.Publish()
		if at+size < c.Bytes {
			if err := begin(at + size); err != nil {
				return err
			}
		}
		if err := c.Await(ctx, c.name, results); err != nil {
			return err
		}
		for k := range h.live {
			for j := range h.least() {
				from, to := chunkOf(j, h.least(), n)
				a, b := chunkOf(k, count, to-from)
				c.copy(c.out[at+from+a:at+from+b], c.Payload(h.rank(c, k, j), results, b-a))
			}
		}
	}
	return nil
}

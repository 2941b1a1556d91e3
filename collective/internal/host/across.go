package host

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// Across is the part of an all-reduce between hosts, where each host's ranks have folded their inputs already: rank j
// of a host has its host's partial of the j-th chunk, of a length that the ranks j of all hosts have alike, and gets
// the result of the chunk. All ranks call it, those without a chunk with empty operands. most is the length of the
// longest chunk in bytes. The bits are those of the form hierarchical.
func (e *Engine) Across(ctx context.Context, given *spec.Call, most int) error {
	c := &e.call
	c.given, c.name = given, given.Name()
	c.begin(given)
	if c.Choice = acrossChoice; c.Op == weft.PreMulSum {
		c.Choice |= scalarDigest(given)
	}
	if err := c.open(ctx); err != nil {
		return err
	}
	run := c.acrossPairs
	if len(c.hosts.live) > 2 {
		run = c.acrossShares
	}
	if err := run(ctx, len(c.in), most); err != nil {
		return err
	}
	return c.Comm.Operations().Begin(c.name)
}

// acrossChoice is the choice of calls by Across, which no algorithm has.
const acrossChoice = 1<<choiceBits - 1

// stepPart is the part of n bytes that a step has.
func stepPart(at, size, n int) int { return min(size, max(n-at, 0)) }

// acrossPairs has each host fold all partials.
func (c *call) acrossPairs(ctx context.Context, n, most int) error {
	h, f := c.hosts, c.partialsOf(false)
	size := c.stepOf(f)
	c.Bytes = most // of what all ranks go through
	return c.ahead(ctx, size, func(at int) error {
		m := stepPart(at, size, n)
		copy(c.Fill(m), c.in[min(at, n):][:m])
		c.Publish()
		return nil
	}, func(at int, round uint64) error {
		if m := stepPart(at, size, n); m > 0 {
			h.across(c, f, c.out[at:at+m], round, m, 0, m)
		}
		return nil
	})
}

// acrossShares has each host fold its share of each chunk, and tell the others.
func (c *call) acrossShares(ctx context.Context, n, most int) error {
	h, f := c.hosts, c.partialsOf(false)
	count, size := len(h.live), c.stepOf(f)
	begin := func(at int) {
		m := stepPart(at, size, n)
		copy(c.Fill(m), c.in[min(at, n):][:m])
		for k := range h.live {
			from, to := chunkOf(k, count, m)
			c.Limit(h.number(c, k), from, to)
		}
		c.Publish()
	}
	begin(0)
	for at := 0; at < most; at += size {
		m, round := stepPart(at, size, n), c.Last()
		if err := c.Await(ctx, c.name, round); err != nil {
			return err
		}
		if from, to := chunkOf(h.here, count, m); to > from {
			h.across(c, f, c.Fill(to-from), round, m, from, to)
		}
		results := c.Publish()
		if at+size < most {
			begin(at + size)
		}
		if err := c.Await(ctx, c.name, results); err != nil {
			return err
		}
		for k := range h.live {
			from, to := chunkOf(k, count, m)
			if to > from {
				copy(c.out[at+from:at+to], c.Payload(h.rank(c, k, h.self), results, to-from))
			}
		}
	}
	return nil
}

package host

import (
	"context"
)

// pipeline is eager by steps: while the others take one out of this rank's ring, it stages the next.
// In a step of distinct pieces each has its place in the ring. A rank that sends nothing publishes every
// round too: that says what it has read.
//
// In place it needs no care: what a step overwrites was staged before.
var pipeline = form{
	name: "pipeline", supports: notBetween, demands: demandsOneHost,
	run: func(ctx context.Context, c *call) error {
		c.plan()
		places, size := 1, c.step(tuning.CopyStep)
		if c.distinct() {
			places = c.Ranks
			size = max(c.step(tuning.ScatterStep)/places&^63, 64)
		}
		sends := c.sends(c.Comm.Rank())
		stage := func(at int) {
			if sends {
				to := c.Fill(places * size)
				if places == 1 {
					c.limit(size, nil)
					p := &c.send[c.Self]
					n := p.part(at, size)
					c.stage(to[:n], c.in[p.src+min(at, p.n):][:n])
				} else {
					c.limit(places*size, func(i int) (from, to int) { return i * size, (i + 1) * size })
					for i := range c.Live {
						if p := &c.send[i]; i != c.Self && p.n > at {
							n := p.part(at, size)
							c.stage(to[i*size:][:n], c.in[p.src+at:][:n])
						}
					}
				}
			}
			c.Publish()
		}
		if c.Bytes > 0 {
			stage(0)
		}
		for at := 0; at < c.Bytes; at += size {
			round := c.Last()
			if at+size < c.Bytes {
				stage(at + size)
			}
			c.keep(at, size)
			if err := c.Await(ctx, c.name, round); err != nil {
				return err
			}
			for i, r := range c.Live {
				c.rows[i] = nil
				if p := &c.recv[i]; i != c.Self && p.n > at {
					from := 0
					if places > 1 {
						from = c.Self * size
					}
					c.rows[i] = c.Payload(r, round, places*size)[from:][:p.part(at, size)]
				}
			}
			c.take(at, size)
		}
		return nil
	},
}

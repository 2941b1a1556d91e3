package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// twoShot reduces every element once: each rank reduces its chunk of a step, and those that have an
// output copy the others'. A step takes two rounds, the inputs' and the results'; the inputs of the next
// step are staged between them. Its traffic on each rank is about five passes, however many ranks; a
// rank without an output saves one.
var twoShot = form{
	name: "two-shot", supports: notBetween, demands: demandsOneHost,
	run: func(ctx context.Context, c *call) error {
		size := c.step(tuning.TwoShotStep)
		root := c.Collective == spec.Reduce && c.out != nil
		// stage publishes what the others need of a step: all but this rank's chunk.
		stage := func(at int) {
			in := c.in[at:min(at+size, c.Bytes)]
			to := c.Fill(len(in))
			from, end := c.chunk(c.Self, len(in))
			c.stage(to[:from], in[:from])
			c.stage(to[end:], in[end:])
			c.Publish()
		}
		if c.Bytes > 0 {
			stage(0)
		}
		for at := 0; at < c.Bytes; at += size {
			n := min(size, c.Bytes-at)
			inputs := c.Last()
			if err := c.Await(ctx, c.name, inputs); err != nil {
				return err
			}
			from, to := c.chunk(c.Self, n)
			for i, r := range c.Live {
				c.rows[i] = c.Payload(r, inputs, n)[from:to]
			}
			c.rows[c.Self] = c.in[at+from : at+to]
			if root { // whose chunk only it needs
				c.reduce(c.out[at+from:at+to], c.rows[:c.Ranks], c.stream)
			} else {
				c.share(c.Fill(n)[from:to], c.rows[:c.Ranks])
			}
			results := c.Publish()
			if at+size < c.Bytes {
				stage(at + size)
			}
			if err := c.Await(ctx, c.name, results); err != nil {
				return err
			}
			for k := range c.Live {
				i := (c.Self + k) % c.Ranks // not all from the same rank at once
				if c.out != nil && (k > 0 || !root) {
					from, to := c.chunk(i, n)
					c.copy(c.out[at+from:at+to], c.Payload(c.Live[i], results, n)[from:to])
				}
			}
		}
		return nil
	},
}

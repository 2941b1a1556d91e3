package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allReduceTwoShot reduces every element once: each rank reduces its chunk of a step, and the
// others copy it. A step takes two rounds, the inputs' and the results'; the inputs of the next
// step are staged between them. Its traffic on each rank is about five passes, however many ranks.
var allReduceTwoShot = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-reduce/two-shot", Collective: spec.AllReduce,
		Supports: func(spec.Request) bool { return true },
	},
	run: func(ctx context.Context, c *call) error {
		size := c.step(tuning.TwoShotStep)
		// stage publishes what the others need of a step: all but this rank's chunk.
		stage := func(at int) {
			in := c.in[at:min(at+size, c.Bytes)]
			out := c.Fill(len(in))
			from, to := c.chunk(c.Self, len(in))
			c.stage(out[:from], in[:from])
			c.stage(out[to:], in[to:])
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
			c.share(c.Fill(n)[from:to], c.rows[:c.Ranks])
			results := c.Publish()
			if at+size < c.Bytes {
				stage(at + size)
			}
			if err := c.Await(ctx, c.name, results); err != nil {
				return err
			}
			for k := range c.Live {
				i := (c.Self + k) % c.Ranks // not all from the same rank at once
				from, to := c.chunk(i, n)
				c.copy(c.out[at+from:at+to], c.Payload(c.Live[i], results, n)[from:to])
			}
		}
		return nil
	},
}

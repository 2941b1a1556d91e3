package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allReducePipeline is allReduceEager by steps: a rank stages a step in its ring, and the next
// one while the others read. Its traffic on each rank is two passes over its input to stage
// it, and ranks+1 to reduce.
var allReducePipeline = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-reduce/pipeline", Collective: spec.AllReduce,
		Supports: func(spec.Request) bool { return true },
	},
	run: func(ctx context.Context, c *call) error {
		size := c.step(tuning.ReduceStep)
		stage := func(at int) {
			n := min(size, c.Bytes-at)
			c.stage(c.Fill(n), c.in[at:at+n])
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
			if err := c.Await(ctx, c.name, round); err != nil {
				return err
			}
			n := min(size, c.Bytes-at)
			for i, r := range c.Live {
				c.rows[i] = c.Payload(r, round, n)
			}
			// This rank reads its own rows from its input, which an operation in place overwrites only now.
			c.rows[c.Self] = c.in[at : at+n]
			c.reduce(c.out[at:at+n], c.rows[:c.Ranks], c.stream)
		}
		return nil
	},
}

package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allReduceWindow reduces every element once, in place: each rank reads its chunk of every
// rank's input in its window and writes the result to its own output, from where the others copy
// it. It goes step by step, so that the results are still in a cache. Nothing is staged: the traffic
// on each rank is two passes to read and one to write its chunks, and two to fetch the others'.
//
// In place it needs no care: only rank r reads the chunk of rank r in other ranks' inputs, before it
// publishes the result, and that overwrites the chunk.
var allReduceWindow = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-reduce/window", Collective: spec.AllReduce,
		Supports: func(q spec.Request) bool { return q.Windows&(spec.Inputs|spec.Outputs) == spec.Inputs|spec.Outputs },
	},
	run: func(ctx context.Context, c *call) error {
		ins, outs := c.ins[:c.Ranks], c.outs[:c.Ranks]
		for i := range c.Live {
			var err error
			if ins[i], err = c.input(i); err != nil {
				return err
			}
			if outs[i], err = c.output(i, c.Bytes); err != nil {
				return err
			}
		}
		size := max(tuning.WindowChunk*c.Ranks, 64)
		reduce := func(at int) {
			n := min(size, c.Bytes-at)
			from, to := c.chunk(c.Self, n)
			for i := range ins {
				c.rows[i] = ins[i][at+from : at+to]
			}
			c.share(c.out[at+from:at+to], c.rows[:c.Ranks])
			c.Publish()
		}
		if c.Bytes > 0 {
			reduce(0)
		}
		for at := 0; at < c.Bytes; at += size {
			round := c.Last()
			if at+size < c.Bytes {
				reduce(at + size)
			}
			if err := c.Await(ctx, c.name, round); err != nil {
				return err
			}
			n := min(size, c.Bytes-at)
			for k := 1; k < c.Ranks; k++ {
				i := (c.Self + k) % c.Ranks
				from, to := c.chunk(i, n)
				c.copy(c.out[at+from:at+to], outs[i][at+from:at+to])
			}
		}
		return c.close(ctx)
	},
}

package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// window is twoShot without staging: each rank reads its chunk of every rank's input in its window. It
// writes the result to its own output, from where the others copy it, or for a root to the ring. It
// goes step by step, so that the results are still in a cache. The traffic on each rank is two passes
// to read and one to write its chunks, and two to fetch the others'.
//
// In place it needs no care: only rank r reads the chunk of rank r in other ranks' inputs, before it
// publishes the result, and that overwrites the chunk.
var window = form{
	name: "window",

	demands: "reads inputs in windows of every rank and, but for a reduce, outputs there",
	supports: func(q spec.Request) bool {
		if q.Hosts > 1 {
			return false
		}
		if q.Collective == spec.Reduce {
			return q.Windows&spec.Inputs != 0
		}
		return q.Windows&(spec.Inputs|spec.Outputs) == spec.Inputs|spec.Outputs
	},
	run: func(ctx context.Context, c *call) error {
		rooted, self := c.Collective == spec.Reduce, c.Self
		ins, outs := c.ins[:c.Ranks], c.outs[:c.Ranks]
		ins[self], outs[self] = c.in, c.out
		for i := range c.Live {
			var err error
			if i == self {
				continue
			}
			if ins[i], err = c.peer(i, c.inputs[i], c.Bytes); err != nil {
				return err
			}
			if !rooted {
				if outs[i], err = c.peer(i, c.outputs[i], c.Bytes); err != nil {
					return err
				}
			}
		}
		size := c.step(tuning.WindowChunk) * c.Ranks
		reduce := func(at int) {
			n := min(size, c.Bytes-at)
			from, to := c.chunk(self, n)
			for i := range ins {
				c.rows[i] = ins[i][at+from : at+to]
			}
			switch rows := c.rows[:c.Ranks]; {
			case !rooted:
				c.share(c.out[at+from:at+to], rows)
			case c.out != nil:
				c.reduce(c.out[at+from:at+to], rows, c.stream)
			default:
				c.share(c.Fill(to-from), rows)
			}
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
			for k := 1; k < c.Ranks && c.out != nil; k++ {
				i := (self + k) % c.Ranks
				from, to := c.chunk(i, n)
				if rooted {
					c.copy(c.out[at+from:at+to], c.Payload(c.Live[i], round, to-from))
				} else {
					c.copy(c.out[at+from:at+to], outs[i][at+from:at+to])
				}
			}
		}
		return c.close(ctx)
	},
}

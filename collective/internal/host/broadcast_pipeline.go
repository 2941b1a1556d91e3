package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// broadcastPipeline stages the root's data step by step. The others publish every round too: it
// tells the root what they have read.
var broadcastPipeline = algorithm{
	Algorithm: spec.Algorithm{
		Name: "broadcast/pipeline", Collective: spec.Broadcast,
		Supports: func(spec.Request) bool { return true },
	},
	run: func(ctx context.Context, c *call) error {
		root := c.Root == c.Comm.Rank()
		size := c.step(tuning.CopyStep)
		stage := func(at int) {
			if root {
				n := min(size, c.Bytes-at)
				c.stage(c.Fill(n), c.in[at:at+n])
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
			if err := c.Await(ctx, c.name, round); err != nil {
				return err
			}
			if n := min(size, c.Bytes-at); root {
				c.move(c.out[at:at+n], c.in[at:at+n])
			} else {
				c.copy(c.out[at:at+n], c.Payload(c.Root, round, n))
			}
		}
		return nil
	},
}

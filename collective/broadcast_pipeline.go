package collective

import "context"

// broadcastPipeline stages the root's data step by step. The others publish every round too: it
// tells the root what they have read.
var broadcastPipeline = Algorithm{
	Name:       "broadcast/pipeline",
	Collective: Broadcast,
	Supports:   func(Request) bool { return true },
	run: func(ctx context.Context, c *call) error {
		root := c.Root == c.Comm.Rank()
		size := c.step(tuning.CopyStep)
		stage := func(at int) {
			if root {
				n := min(size, c.Bytes-at)
				c.stage(c.Fill(n), c.out[at:at+n])
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
			if n := min(size, c.Bytes-at); !root {
				c.copy(c.out[at:at+n], c.Payload(c.Root, round, n))
			}
		}
		return nil
	},
}

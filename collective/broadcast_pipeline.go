package collective

import "context"

// broadcastPipeline stages the root's data chunk by chunk. The others publish every round too: it
// tells the root what they have read.
var broadcastPipeline = Algorithm{
	Name:       "broadcast/pipeline",
	Collective: Broadcast,
	Supports:   func(Request) bool { return true },
	run: func(ctx context.Context, c *call) error {
		root := c.Root == c.comm.Rank()
		size := c.chunk(tuning.CopyChunk)
		stage := func(at int) {
			if root {
				n := min(size, c.Bytes-at)
				c.stage(c.fill(n), c.out[at:at+n])
			}
			c.publish()
		}
		if c.Bytes > 0 {
			stage(0)
		}
		for at := 0; at < c.Bytes; at += size {
			round := c.numbers.Last()
			if at+size < c.Bytes {
				stage(at + size)
			}
			if err := c.await(ctx, c.name, round); err != nil {
				return err
			}
			if n := min(size, c.Bytes-at); !root {
				c.copy(c.out[at:at+n], c.payload(c.Root, round, n))
			}
		}
		return nil
	},
}

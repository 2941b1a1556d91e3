package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allGatherPipeline is allGatherEager by steps: while the others copy one out of this rank's ring,
// it stages the next.
var allGatherPipeline = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-gather/pipeline", Collective: spec.AllGather,
		Supports: func(spec.Request) bool { return true },
	},
	run: func(ctx context.Context, c *call) error {
		size := c.step(tuning.CopyStep)
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
			n := min(size, c.Bytes-at)
			c.move(c.block(c.Comm.Rank())[at:at+n], c.in[at:at+n])
			if err := c.Await(ctx, c.name, round); err != nil {
				return err
			}
			for k := 1; k < c.Ranks; k++ {
				r := c.Live[(c.Self+k)%c.Ranks]
				c.copy(c.block(r)[at:at+n], c.Payload(r, round, n))
			}
		}
		return nil
	},
}

package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allGatherEager publishes the input with the round that opens the operation.
var allGatherEager = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-gather/eager", Collective: spec.AllGather,
		Supports: fitsSlot,
		Eager:    true,
	},
	run: func(ctx context.Context, c *call) error {
		if err := c.open(ctx, c.in); err != nil {
			return err
		}
		for _, r := range c.Live {
			if r == c.Comm.Rank() {
				c.move(c.block(r), c.in)
			} else {
				c.copy(c.block(r), c.Payload(r, c.Last(), c.Bytes))
			}
		}
		return nil
	},
}

// block is rank's share of an AllGather's output.
func (c *call) block(rank int) []byte { return c.out[rank*c.Bytes:][:c.Bytes] }

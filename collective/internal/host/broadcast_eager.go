package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// broadcastEager carries the root's data in the round that opens the operation.
var broadcastEager = algorithm{
	Algorithm: spec.Algorithm{
		Name: "broadcast/eager", Collective: spec.Broadcast,
		Supports: fitsSlot,
		Eager:    true,
	},
	run: func(ctx context.Context, c *call) error {
		root := c.Root == c.Comm.Rank()
		var data []byte
		if root {
			data = c.in
		}
		if err := c.open(ctx, data); err != nil {
			return err
		}
		if root {
			c.move(c.out, c.in)
		} else {
			c.copy(c.out, c.Payload(c.Root, c.Last(), c.Bytes))
		}
		return nil
	},
}

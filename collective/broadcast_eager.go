package collective

import "context"

// broadcastEager carries the root's data in the round that opens the operation.
var broadcastEager = Algorithm{
	Name:       "broadcast/eager",
	Collective: Broadcast,
	Supports:   fitsSlot,
	eager:      true,
	run: func(ctx context.Context, c *call) error {
		root := c.Root == c.Comm.Rank()
		var data []byte
		if root {
			data = c.out
		}
		if err := c.open(ctx, data); err != nil {
			return err
		}
		if !root {
			c.copy(c.out, c.Payload(c.Root, c.Last(), c.Bytes))
		}
		return nil
	},
}

package collective

import (
	"context"
	"slices"
)

// broadcastWindow copies the root's data out of its window. Nothing is staged.
var broadcastWindow = Algorithm{
	Name:       "broadcast/window",
	Collective: Broadcast,
	Supports:   func(q Request) bool { return q.Windows&Inputs != 0 },
	run: func(ctx context.Context, c *call) error {
		if c.Root != c.Comm.Rank() {
			src, err := c.input(slices.Index(c.Live, c.Root))
			if err != nil {
				return err
			}
			c.copy(c.out, src)
		}
		return c.close(ctx)
	},
}

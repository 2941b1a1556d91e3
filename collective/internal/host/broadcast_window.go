package host

import (
	"context"
	"slices"

	"github.com/weftgo/weft/collective/spec"
)

// broadcastWindow copies the root's data out of its window. Nothing is staged.
var broadcastWindow = algorithm{
	Algorithm: spec.Algorithm{
		Name: "broadcast/window", Collective: spec.Broadcast,
		Supports: func(q spec.Request) bool { return q.Windows&spec.Inputs != 0 },
	},
	run: func(ctx context.Context, c *call) error {
		if c.Root == c.Comm.Rank() {
			c.move(c.out, c.in)
		} else {
			src, err := c.input(slices.Index(c.Live, c.Root))
			if err != nil {
				return err
			}
			c.copy(c.out, src)
		}
		return c.close(ctx)
	},
}

package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allGatherWindow copies every rank's input from its window, or, where outputs lie in windows and
// inputs do not, from the block of the rank's own output to which it has copied it anyway. Nothing
// is staged.
var allGatherWindow = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-gather/window", Collective: spec.AllGather,
		Supports: func(q spec.Request) bool { return q.Windows&(spec.Inputs|spec.Outputs) != 0 },
	},
	run: func(ctx context.Context, c *call) error {
		own := c.Comm.Rank()
		if c.Windows&spec.Inputs == 0 {
			c.move(c.block(own), c.in)
			if err := c.close(ctx); err != nil {
				return err
			}
		}
		for k := 1; k < c.Ranks; k++ {
			i := (c.Self + k) % c.Ranks
			r := c.Live[i]
			var src []byte
			var err error
			if c.Windows&spec.Inputs != 0 {
				src, err = c.input(i)
			} else if src, err = c.output(i, len(c.out)); err == nil {
				src = src[r*c.Bytes:][:c.Bytes]
			}
			if err != nil {
				return err
			}
			c.copy(c.block(r), src)
		}
		if c.Windows&spec.Inputs != 0 {
			c.move(c.block(own), c.in)
		}
		return c.close(ctx)
	},
}

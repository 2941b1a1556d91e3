package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// allReducePull reads the whole inputs of all ranks in their windows and reduces them into the
// caller's output, wherever that is: ranks+1 passes, two rounds. It cannot work in place, where a result
// would overwrite an input that others still read.
var allReducePull = algorithm{
	Algorithm: spec.Algorithm{
		Name: "all-reduce/pull", Collective: spec.AllReduce,
		Supports: func(q spec.Request) bool { return q.Windows&(spec.Inputs|spec.InPlace) == spec.Inputs },
	},
	run: func(ctx context.Context, c *call) error {
		for i := range c.Live {
			var err error
			if c.rows[i], err = c.input(i); err != nil {
				return err
			}
		}
		c.reduce(c.out, c.rows[:c.Ranks], c.stream)
		return c.close(ctx)
	},
}

package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// pull reads what the others send where it lies in their windows, and writes it once: two rounds, and
// nothing is staged. An all-gather whose outputs lie in windows, and inputs do not, reads each rank's
// block of its own output, to which that rank has copied it anyway.
//
// It cannot work in place where an output would overwrite what others still read.
var pull = form{
	name: "pull",

	demands: "reads inputs in windows of every rank, of an all-reduce or an all-to-all " +
		"such that are not the output; of an all-gather outputs in windows will do",
	supports: func(q spec.Request) bool {
		if q.Hosts > 1 {
			return false
		}
		switch q.Collective {
		case spec.AllReduce, spec.AllToAll:
			return q.Windows&(spec.Inputs|spec.InPlace) == spec.Inputs
		case spec.AllGather, spec.AllGatherV:
			return q.Windows&(spec.Inputs|spec.Outputs) != 0
		default:
			return q.Windows&spec.Inputs != 0
		}
	},
	run: func(ctx context.Context, c *call) error {
		c.plan()
		inputs := c.Windows&spec.Inputs != 0
		if !inputs {
			c.keep(0, all)
			if err := c.close(ctx); err != nil {
				return err
			}
		}
		for i := range c.Live {
			c.rows[i] = nil
			p := &c.recv[i]
			if i == c.Self || p.n == 0 {
				continue
			}
			ref, at := c.inputs[i], p.src
			if !inputs {
				ref, at = c.outputs[i], p.dst
			}
			ref.Offset += uint64(at)
			var err error
			if c.rows[i], err = c.peer(i, ref, p.n); err != nil {
				return err
			}
		}
		if inputs {
			c.keep(0, all)
		}
		c.take(0, all)
		return c.close(ctx)
	},
}

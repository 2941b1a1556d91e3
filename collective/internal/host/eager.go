package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// eager carries the data in the round that opens the operation. For up to 40 bytes it takes one trip of
// a cache line, the least there is. A sender of distinct pieces leaves out its own, but not the room
// for it.
var eager = form{
	name:  "eager",
	eager: true,

	demands: "sends what fits in one slot of Options.Scratch",
	supports: func(q spec.Request) bool {
		if q.Collective == spec.AllToAllV {
			return q.Sent <= eagerRoom(q.Slot, q.Ranks)
		}
		return q.Sent <= q.Slot
	},
	run: func(ctx context.Context, c *call) error {
		c.plan()
		if c.Collective != spec.AllToAllV { // whose counts have opened it, and brought the data
			if c.sends(c.Comm.Rank()) {
				c.load()
			}
			if err := c.open(ctx); err != nil {
				return err
			}
		}
		for i, r := range c.Live {
			c.rows[i] = nil
			if p := &c.recv[i]; i != c.Self && p.n > 0 {
				c.rows[i] = c.Payload(r, c.Last(), p.of)[p.at:][:p.n]
			}
		}
		c.keep(0, all)
		c.take(0, all)
		return nil
	},
}

// load makes what this rank sends the payload of the next round.
func (c *call) load() {
	if !c.distinct() {
		c.stage(c.Fill(len(c.in)), c.in)
		c.limit(len(c.in), nil)
		return
	}
	to := c.Fill(c.Sent)
	c.limit(c.Sent, func(i int) (from, to int) { return c.send[i].at, c.send[i].at + c.send[i].n })
	for i := range c.Live {
		if p := &c.send[i]; i != c.Self && p.n > 0 {
			c.stage(to[p.at:][:p.n], c.in[p.src:][:p.n])
		}
	}
}

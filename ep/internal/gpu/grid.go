package gpu

import (
	"cmp"
	"context"
	"fmt"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/occupancy"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// A grid is the blocks of a launch: those that move rows, and the notify blocks, which do not.
type grid struct {
	moving, notify, threads int
	first                   int // of the lane's counts, one a block
}

func (g grid) blocks() int { return g.moving + g.notify }

// A request is the grid that a kernel asks for. Until fit has sized it, moving is how many
// blocks would have something to do.
type request struct {
	grid
	of        operation
	functions []*cuda.Function // that are launched so; nil ones are none
	whole     bool             // a block takes an SM: its shared memory does
	widens    bool             // blocks may have more threads, so that fewer have as many warps
	most      int              // threads of a block that fills what room the others have taken, or 0

	cost int // how many threads of an SM a block takes
}

// operation is what a grid is of.
type operation int

const (
	ofDispatch operation = iota
	ofCombine
	ofGradients
	operations
)

// String is the operation's name in traces.
func (o operation) String() string { return [operations]string{"dispatch", "combine", "gradients"}[o] }

// costs are those of blocks: enginegpu.Cost. The error is that of the first question that the driver
// did not answer.
type costs struct{ err error }

func (c *costs) of(threads int, functions ...*cuda.Function) (cost int) {
	cost, err := enginegpu.Cost(threads, 0, functions...)
	c.err = cmp.Or(c.err, err)
	return max(cost, threads)
}

// fit sizes the movers' grids, on every rank alike, and takes room for them. Only a
// handle that is alone on its GPU has as many blocks of each kernel as fit.
func (h *handle) fit(ctx context.Context) (err error) {
	var c costs
	var all []*request
	cost, least := 0, 1 // of the dearest block; blocks that an operation needs
	for _, m := range h.movers {
		d := m.want()
		if d == nil {
			continue
		}
		all = append(all, d)
		if d.cost = occupancy.SMThreads; d.whole {
			h.whole = true
		} else {
			d.cost = c.of(d.threads, d.functions...)
		}
		if cost = max(cost, d.cost); d.notify > 0 {
			least = 2
		}
	}
	h.room, err = enginegpu.Fit(ctx, h.Comm, enginegpu.Want{
		Op: opNew, Cost: cost, SMs: h.Spec.SMs, SerialGroup: h.Spec.SerialGroup, Least: least,
	})
	if err != nil {
		return err
	}
	cost = occupancy.SMThreads / h.room.PerSM
	reserved, text := 0, ""
	for _, d := range all {
		if d.most > 0 {
			d.fill(&c, reserved, cost)
		} else {
			d.size(&c, h.room, h.device.SMs(), cost)
		}
		// a handle that is alone may have more blocks than room, of cheaper ones
		reserved = max(reserved, min(d.blocks(), h.room.Blocks))
		d.first = h.counts
		h.counts += d.blocks()
		h.parts = append(h.parts, enginegpu.Part{Name: d.of.String(), Counts: d.blocks()})
		h.grids[d.of] = d.grid
		text += fmt.Sprintf("%d and %d blocks of %d threads; ", d.moving, d.notify, d.threads)
	}
	return h.room.Take(ctx, reserved, text, c.err)
}

// size gives the grid as many blocks as have something to do and find room.
func (d *request) size(c *costs, room *enginegpu.Room, sms, cost int) {
	if d.widens && !room.Alone {
		for d.moving > room.Blocks && d.threads <= 256 && c.of(2*d.threads, d.functions...) <= cost {
			d.threads, d.moving = 2*d.threads, spec.CeilDiv(d.moving, 2)
		}
	}
	most := room.Blocks
	if room.Alone {
		most = sms * (occupancy.SMThreads / d.cost)
	}
	if most > sms {
		most -= most % sms // so that all SMs have the same to do
	}
	if max(1, most) <= d.notify {
		d.notify = min(d.notify, 1)
	}
	d.moving = min(d.moving, max(1, most-d.notify))
}

// fill takes the blocks that the other kernels have, with as many threads as fit.
func (d *request) fill(c *costs, blocks, cost int) {
	d.moving = blocks
	for wide := 2 * d.threads; wide <= d.most && c.of(wide, d.functions...) <= cost; wide *= 2 {
		d.threads = wide
	}
}

// config is the launch of a grid. A dependent one begins while the kernel before it still ends,
// where the GPU can do that.
func (h *handle) config(g grid, dependent bool) cuda.LaunchConfig {
	return cuda.LaunchConfig{
		Grid: cuda.Dim{X: uint32(g.blocks())}, Block: cuda.Dim{X: uint32(g.threads)},
		Dependent: dependent && h.major >= 9,
	}
}

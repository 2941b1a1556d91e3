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

// A demand is the grid that a kernel asks for, which fit settles. Until then moving is how many
// blocks would have something to do.
type demand struct {
	grid
	of        operation
	functions []*cuda.Function // that are launched so; nil ones are none
	whole     bool             // a block takes an SM: its shared memory does
	widens    bool             // blocks may have more threads, so that fewer have as many warps
	most      int              // threads of a block that fills what room the others have taken, or 0

	weight int // how many threads of an SM a block takes
}

// operation is what a grid is of.
type operation int

const (
	ofDispatch operation = iota
	ofCombine
	ofGradients
	operations
)

// weigher says how much of an SM a block takes: enginegpu.Cost. Its error is that of the first
// question that the driver did not answer.
type weigher struct{ err error }

func (w *weigher) weigh(threads int, functions ...*cuda.Function) (weight int) {
	weight, err := enginegpu.Cost(threads, functions...)
	w.err = cmp.Or(w.err, err)
	return max(weight, threads)
}

// fit settles how many blocks the movers have, on every rank alike, and takes room for them. Only a
// handle that is alone on its GPU has as many blocks of each kernel as fit.
func (h *handle) fit(ctx context.Context) (err error) {
	var w weigher
	var all []*demand
	weight, least := 0, 1 // of the heaviest block; blocks that an operation needs
	for _, m := range h.movers {
		d := m.want()
		if d == nil {
			continue
		}
		all = append(all, d)
		if d.weight = occupancy.SMThreads; d.whole {
			h.whole = true
		} else {
			d.weight = w.weigh(d.threads, d.functions...)
		}
		if weight = max(weight, d.weight); d.notify > 0 {
			least = 2
		}
	}
	h.room, err = enginegpu.Fit(ctx, h.Comm, enginegpu.Want{
		Op: opNew, Cost: weight, SMs: h.Spec.SMs, SerialGroup: h.Spec.SerialGroup, Least: least,
	})
	if err != nil {
		return err
	}
	weight = occupancy.SMThreads / h.room.PerSM
	reserved, text := 0, ""
	for _, d := range all {
		if d.most > 0 {
			d.fill(&w, reserved, weight)
		} else {
			d.settle(&w, h.room, h.device.SMs(), weight)
		}
		// a handle that is alone may have more blocks than room, of lighter ones
		reserved = max(reserved, min(d.blocks(), h.room.Blocks))
		d.first = h.counts
		h.counts += d.blocks()
		h.grids[d.of] = d.grid
		text += fmt.Sprintf("%d and %d blocks of %d threads; ", d.moving, d.notify, d.threads)
	}
	return h.room.Take(ctx, reserved, text, w.err)
}

// settle gives blocks that have something to do room.
func (d *demand) settle(w *weigher, room *enginegpu.Room, sms, weight int) {
	if d.widens && !room.Alone {
		for d.moving > room.Blocks && d.threads <= 256 && w.weigh(2*d.threads, d.functions...) <= weight {
			d.threads, d.moving = 2*d.threads, spec.CeilDiv(d.moving, 2)
		}
	}
	most := room.Blocks
	if room.Alone {
		most = sms * (occupancy.SMThreads / d.weight)
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
func (d *demand) fill(w *weigher, blocks, weight int) {
	d.moving = blocks
	for wide := 2 * d.threads; wide <= d.most && w.weigh(wide, d.functions...) <= weight; wide *= 2 {
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

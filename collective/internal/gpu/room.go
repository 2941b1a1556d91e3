package gpu

import (
	"context"

	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// blockCost is what a block counts for: kernels have up to 128 registers, and between two ranks 80, so that
// 4 or 6 blocks fit on an SM: RESIDENT of slots.cuh.
func blockCost(ranks int) int {
	if ranks <= 2 {
		return threads * 80 / 64
	}
	return threads * 128 / 64
}

// heavy is what kernels have of which a block costs more than blockCost: it keeps others from more of an SM, so
// fewer of them fit. They never run beside the group's other kernels, and share the room of the largest.
type heavy struct {
	cost   int // 0: they are not loaded
	blocks int // that a launch may have, which are no more than the lane counts; 0: there is no room yet
}

// ready loads heavy kernels, and takes room for them, unless that was done. It is collective.
func (e *Engine) ready(ctx context.Context, op string, h *heavy, kernels ...loading) (err error) {
	if h.cost == 0 {
		if h.cost, err = e.load(ctx, kernels...); err != nil {
			return err
		}
	}
	if h.blocks > 0 {
		return nil
	}
	room, err := enginegpu.Fit(ctx, e.comm, enginegpu.Want{Op: op, Cost: h.cost, SMs: e.sms, Beside: e.room, Least: 1})
	if err != nil {
		return err
	}
	blocks := min(room.Blocks, e.blocks)
	if err := room.Take(ctx, blocks, room.String(), nil); err != nil {
		return err
	}
	h.blocks, e.rooms = blocks, append(e.rooms, room)
	return nil
}

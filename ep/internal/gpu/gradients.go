package gpu

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// gradientArgs are the arguments of what moves gradients: the Gradients of gradients.cu.
type gradientArgs struct {
	shape                    shape
	state                    uint64
	openings, marks          uint64
	first, flags, tokens, at uint32
	rowBytes, align          uint32
	call, _                  uint32
	chunk, carriers          uint32
	room, multipliers        uint32
	home, described          uint64
	y, rows                  uint64
	scalars                  scalarArgs
	group                    device.Group
}

// scalarArgs say which gradients of weights go home: the Scalars of scalars.cuh.
type scalarArgs struct {
	at                   uint64
	topk                 device.Divisor
	recvRows, recvTokens uint64
	rows, home           uint64
}

// set says which gradients of weights go home, by r.
func (a *scalarArgs) set(r *gpuRouting, s *spec.SumArgs) {
	a.recvRows, a.recvTokens = r.at(r.off.recvRows), 0
	if r.h.Spec.Layout == spec.TokenMajor {
		a.recvTokens = r.at(r.off.recvTokens)
	}
	a.rows, a.home = addressOf(s.Scalars), addressOf(s.OutScalars)
}

// A block of gradients has gradientThreads or more, up to as many as the MOST_WARPS of
// gradients.cu are.
const gradientThreads, mostGradientThreads = 4 * 32, 16 * 32

func gradientKernel(of weft.DType, arch string) kernel.Spec {
	s := kernelSpec(fmt.Sprintf("gradients of %v", of), "gradients.cu", arch, []string{"weft::ep::gradients"},
		"direct.cuh", "scalars.cuh")
	s.Defines["WEFT_TYPE"] = strconv.Itoa(typeNumber(of))
	s.Defines["WEFT_GRADIENT_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(gradientArgs{})))
	return s
}

// addGradients lays out what gradients have: what ranks tell each other, the numbers that come
// home, and a copy of the tokens' gradients for others to read.
func (r *regions) addGradients(g *spec.Geometry, s spec.Spec, blocks int) {
	if !s.Combines() {
		return
	}
	r.gradientOpenings = r.Ones(3 * int64(g.Ranks) * device.OpeningBytes)
	r.gradientMarks = r.Zeros(int64(g.Ranks) * int64(blocks) * 4)
	r.scalars = r.Raw(2 * int64(g.Tokens) * int64(g.TopK) * 4)
	r.gradients = r.Raw(int64(g.Tokens) * int64(s.OutputSize()))
}

// prepareGradients lays out the launch.
func (h *gpu) prepareGradients(f functions) (err error) {
	g, s, r := &h.Geometry, &h.Spec, &h.regions
	a := gradientArgs{
		shape: h.shape(), openings: uint64(r.gradientOpenings), marks: uint64(r.gradientMarks),
		first: uint32(h.locals.gradientCounts),
		at:    uint32(r.gradients / 16), rowBytes: uint32(s.OutputSize()), align: uint32(g.Align),
		scalars: scalarArgs{at: uint64(r.scalars), topk: device.NewDivisor(g.TopK)},
	}
	config := cuda.LaunchConfig{
		Grid:  cuda.Dim{X: uint32(h.blocks.gradients)},
		Block: cuda.Dim{X: uint32(h.blocks.gradientThreads)},
	}
	bulk, err := h.bulk()
	if err != nil {
		return err
	}
	// A block of a handle whose rows have places has an SM to itself, so there is shared memory.
	if c := s.GradientCarry(h.blocks.gradientThreads); bulk && h.tuning.Placed && c.Warps > 0 {
		warps := min(spec.ProductWarps, h.blocks.gradientThreads/32)
		room := spec.BulkSharedBytes / (spec.ProductDepth * warps) / spec.UnitBytes * spec.UnitBytes
		a.chunk, a.carriers, a.room, a.multipliers = uint32(c.Chunk), uint32(c.Warps), uint32(room), uint32(warps)
		config.Shared = max(c.Chunk*c.Warps, room*spec.ProductDepth*warps)
		if err := f.gradients.SetMaxDynamicShared(config.Shared); err != nil {
			return err
		}
	}
	if h.moving, err = f.gradients.Prepare(config, a); err != nil {
		return err
	}
	h.gradientArg, err = cuda.Arg[gradientArgs](h.moving, 0)
	return err
}

func (h *gpu) DispatchBackward(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	const op = spec.OpDispatchBackward
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := cmp.Or(h.checkCombineOperands(op, &a), h.CheckScalars(op, &a),
		whole(op, "gradients of the rows' weights", a.Scalars), whole(op, "gradients of weights", a.OutScalars)); err != nil {
		return err
	}
	call := uint32(tagDispatchBackward)
	if !a.OutScalars.IsZero() {
		call = tagDispatchWeightBackward
	}
	if err := h.startCombine(call, stream, &a, flagSend|flagReceive); err != nil {
		return err
	}
	if !a.OutScalars.IsZero() && !h.tuning.Pulls {
		h.setGradients(&a)
		if err := h.startGradients(stream, call, 0); err != nil {
			return err
		}
	}
	return h.lane.Finish(ctx, s)
}

func (h *gpu) CombineBackward(ctx context.Context, s *weft.Stream, c spec.SpreadArgs) error {
	const op = spec.OpCombineBackward
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := cmp.Or(h.CheckSpread(op, &c), aligned(op, "gradients of the output", c.GradOut),
		aligned(op, "rows", c.Rows), aligned(op, "gradients of rows", c.GradRows),
		whole(op, "gradients of weights", c.GradWeights)); err != nil {
		return err
	}
	a := h.setGradients(&spec.SumArgs{Batch: c.Batch, OutScalars: c.GradWeights})
	a.rows = addressOf(c.GradRows)
	call, flags := uint32(tagCombineBackward), flagRowGradients|h.weighted()
	if !c.GradWeights.IsZero() {
		call, flags = tagCombineWeightBackward, flags|flagWeightGradients
		a.y = addressOf(c.Rows)
	}
	if a.carriers > 0 {
		flags |= flagBulk
	}
	at, ok := h.readable(c.GradOut)
	if !ok {
		at = h.regions.gradients
		if err := stream.Copy(h.lane.Window().Pointer().Add(int(at)), c.GradOut.Pointer(), c.GradOut.Bytes()); err != nil {
			return err
		}
	}
	a.at = uint32(at / 16)
	if err := h.startGradients(stream, call, flags); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

// setGradients points the launch at a batch, and at the gradients of weights that go and come home.
func (h *gpu) setGradients(c *spec.SumArgs) *gradientArgs {
	a, p := h.gradientArg, c.Batch.Info.(*gpuRouting)
	a.home, a.described = p.at(p.off.home), p.at(p.off.described)
	a.tokens, a.y, a.rows = uint32(c.Batch.Tokens), 0, 0
	a.scalars.set(p, c)
	return a
}

// startGradients enqueues the launch.
func (h *gpu) startGradients(stream *cuda.Stream, call, flags uint32) error {
	if h.Spec.Layout.ByExpert() {
		flags |= flagRowPerSelection
	}
	a := h.gradientArg
	a.call, a.flags, a.group.Waits = call, flags, h.combineWaits
	if flags&flagRowGradients != 0 {
		a.group.Waits = h.dispatchWaits
	}
	return h.lane.Start(stream, h.moving)
}

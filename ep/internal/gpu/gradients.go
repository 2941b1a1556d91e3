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
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// gradients brings gradients of a combine to the rows, and those of weights home: the kernel of
// gradients.cu.
type gradients struct {
	launcher[gradientArgs]
	h       *handle
	request request

	openings, marks, scalars, tokens int64 // offsets in the window; of the tokens' gradients, for peers to read
}

// gradientArgs are the arguments of what moves gradients: the Gradients of gradients.cuh.
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
	l := &r.h.routing
	a.recvRows, a.recvTokens = r.at(l.recvRows), 0
	if r.h.Spec.Layout == spec.TokenMajor {
		a.recvTokens = r.at(l.recvTokens)
	}
	a.rows, a.home = addressOf(s.Scalars), addressOf(s.OutScalars)
}

// A block of gradients has gradientThreads or more, up to as many as the MOST_WARPS of
// gradients.cuh are.
const gradientThreads, mostGradientThreads = 4 * 32, 16 * 32

func gradientKernel(of weft.DType, arch string) kernel.Spec {
	s := kernelSpec(fmt.Sprintf("gradients of %v", of), "gradients.cu", arch, []string{"weft::ep::gradients"},
		"direct.cuh", "scalars.cuh", "gradients.cuh", "gradients_spread.cuh", "gradients_bulk.cuh",
		"gradients_products.cuh")
	s.Defines["WEFT_TYPE"] = strconv.Itoa(typeNumber(of))
	s.Defines["WEFT_GRADIENT_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(gradientArgs{})))
	return s
}

func (m *gradients) load(p *programs) {
	p.add(gradientKernel(m.h.Spec.Output, p.arch), &m.functions[0])
}

// want implements [mover]: gradients have as many blocks as the other kernels have taken room for.
func (m *gradients) want() *request {
	m.request = request{
		of: ofGradients, functions: m.functions[:], grid: grid{threads: gradientThreads},
		most: mostGradientThreads,
	}
	return &m.request
}

func (m *gradients) layout(window, _ *enginegpu.Workspace) {
	g := &m.h.Geometry
	m.openings = window.Ones(3 * int64(g.Ranks) * device.OpeningBytes)
	m.marks = window.Zeros(int64(g.Ranks) * int64(m.request.moving) * 4)
	m.scalars = window.Raw(2 * int64(g.Tokens) * int64(g.TopK) * 4)
	size := int64(g.Tokens) * int64(m.h.Spec.OutputSize())
	m.tokens = window.Raw(size)
	m.h.lend(m.tokens, size)
}

func (m *gradients) prepare() error {
	h, g, s, threads := m.h, &m.h.Geometry, &m.h.Spec, m.request.threads
	a := gradientArgs{
		shape: h.shape(), openings: uint64(m.openings), marks: uint64(m.marks), first: uint32(m.request.first),
		at: uint32(m.tokens / 16), rowBytes: uint32(s.OutputSize()), align: uint32(g.Align),
		scalars: scalarArgs{at: uint64(m.scalars), topk: device.NewDivisor(g.TopK)},
	}
	bulk, err := h.bulk()
	if err != nil {
		return err
	}
	config := h.config(m.request.grid, false)
	// Blocks that have an SM to themselves have its shared memory.
	if c := s.GradientCarry(threads); bulk && h.whole && c.Warps > 0 {
		warps := min(spec.ProductWarps, threads/32)
		room := spec.BulkSharedBytes / (spec.ProductDepth * warps) / spec.UnitBytes * spec.UnitBytes
		a.chunk, a.carriers, a.room, a.multipliers = uint32(c.Chunk), uint32(c.Warps), uint32(room), uint32(warps)
		config.Shared = max(c.Chunk*c.Warps, room*spec.ProductDepth*warps)
	}
	return m.layOut(config, a)
}

func (m *gradients) point() {
	h := m.h
	m.pointed(func(a *gradientArgs) { a.group, a.state = h.lane.Group(h.waits.dispatch), h.localAt(0) })
}

// buffer is memory for gradients of the output that peers read where they are.
func (m *gradients) buffer() weft.Tensor { return m.h.sums(m.tokens, m.h.Geometry.Tokens) }

func (h *handle) DispatchBackward(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	const op = spec.OpDispatchBackward
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := cmp.Or(h.checkSum(op, &a), h.CheckScalars(op, &a),
		whole(op, "gradients of the rows' weights", a.Scalars), whole(op, "gradients of weights", a.OutScalars)); err != nil {
		return err
	}
	if h.ports != nil && !a.OutScalars.IsZero() {
		back, home, err := h.ports.gradients(ctx, op, s, a.Batch)
		if err != nil {
			return err
		}
		return back.DispatchBackward(ctx, s, a, home)
	}
	call := uint32(tagDispatchBackward)
	if !a.OutScalars.IsZero() {
		call = tagDispatchWeightBackward
	}
	if err := h.combiner.send(stream, call, a, flagSend|flagReceive); err != nil {
		return err
	}
	if !a.OutScalars.IsZero() && !h.combiner.bringsScalars() {
		m := moverOf[*gradients](h)
		m.call(&a)
		if err := m.start(stream, call, 0, h.waits.combine); err != nil {
			return err
		}
	}
	return h.lane.Finish(ctx, s)
}

func (h *handle) CombineBackward(ctx context.Context, s *weft.Stream, c spec.SpreadArgs) error {
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
	if h.ports != nil {
		back, home, err := h.ports.gradients(ctx, op, s, c.Batch)
		if err != nil {
			return err
		}
		return back.CombineBackward(ctx, s, c, home)
	}
	m := moverOf[*gradients](h)
	at, ok := h.readable(c.GradOut)
	if !ok {
		at = m.tokens
		if err := stream.Copy(h.lane.Window().Pointer().Add(int(at)), c.GradOut.Pointer(), c.GradOut.Bytes()); err != nil {
			return err
		}
	}
	a := m.call(&spec.SumArgs{Batch: c.Batch, OutScalars: c.GradWeights})
	a.at, a.rows = uint32(at/16), addressOf(c.GradRows)
	call, flags := uint32(tagCombineBackward), flagRowGradients|h.weighted()
	if !c.GradWeights.IsZero() {
		call, flags = tagCombineWeightBackward, flags|flagWeightGradients
		a.y = addressOf(c.Rows)
	}
	if a.carriers > 0 {
		flags |= flagBulk
	}
	if err := m.start(stream, call, flags, h.waits.dispatch); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

// call begins a call for a batch, and for the gradients of weights that go and come home.
func (m *gradients) call(c *spec.SumArgs) *gradientArgs {
	a, p := m.begin(), c.Batch.Info.(*gpuRouting)
	a.home, a.described = p.at(m.h.routing.home), p.at(m.h.routing.described)
	a.tokens = uint32(c.Batch.Tokens)
	a.scalars.set(p, c)
	return a
}

// start enqueues the call, whose waits are counted as those of the operation that it is like.
func (m *gradients) start(stream *cuda.Stream, call, flags uint32, waits uint64) error {
	if m.h.Spec.Layout.ByExpert() {
		flags |= flagRowPerSelection
	}
	a := m.args
	a.call, a.flags, a.group.Waits = call, flags, waits
	return m.h.lane.Start(stream, m.launches[0])
}

// gradientPrograms are those of all handles.
func gradientPrograms(arch string) (all []kernel.Spec) {
	for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
		all = append(all, gradientKernel(of, arch))
	}
	return all
}

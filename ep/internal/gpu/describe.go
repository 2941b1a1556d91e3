package gpu

import (
	"cmp"
	"context"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// describe says what each row of a routing is, and gives weights at home: the kernels of
// describe.cu.
type describe struct {
	apart
	rows    launcher[describeArgs]
	weights launcher[setWeightsArgs]

	h *handle
}

func (d *describe) load(p *programs) {
	p.add(describeKernel(p.arch), &d.rows.functions[0], &d.weights.functions[0])
}

func (d *describe) prepare() error {
	config := cuda.LaunchConfig{Grid: cuda.Dim{X: 64}, Block: cuda.Dim{X: 256}}
	return cmp.Or(d.rows.layOut(config, d.args()), d.weights.layOut(config, setWeightsArgs{}))
}

// args are what a description begins with.
func (d *describe) args() describeArgs {
	g := &d.h.Geometry
	a := describeArgs{shape: d.h.shape(), ranks: uint32(g.Ranks), rows: uint32(g.Rows())}
	if g.Layout.ByExpert() {
		a.byExpert = 1
	}
	return a
}

// describeArgs are the arguments of a description: the Describe of describe.cuh.
type describeArgs struct {
	shape               shape
	ranks, byExpert     uint32
	rows, _             uint32
	recvRows, sent      uint64
	recvTokens          uint64
	tokens, sources     uint64
	selections, weights uint64
	experts, wide       uint64
	expertWeights       uint64
}

// setWeightsArgs are the arguments of what gives a Routing weights, or tells its experts: the SetWeights of
// describe.cu.
type setWeightsArgs struct {
	home    uint64
	n, _    uint32
	weights uint64
	ids     uint64
}

func describeKernel(arch string) kernel.Spec {
	s := kernelSpec("describe", "describe.cu", arch,
		[]string{"weft::ep::describe", "weft::ep::set_weights"}, "describe.cuh")
	s.Defines["WEFT_DESCRIBE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(describeArgs{})))
	s.Defines["WEFT_SET_WEIGHTS_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(setWeightsArgs{})))
	return s
}

// describedRows are where the description of rows stands in its memory.
type describedRows struct{ tokens, sources, selections, weights, experts, expertWeights int }

func (h *handle) SetWeights(ctx context.Context, s *weft.Stream, r *spec.Batch, weights weft.Tensor) error {
	const op = spec.OpSetWeights
	stream := h.lane.Stream(s)
	if err := h.lane.EnterLocal(op, stream); err != nil {
		return err
	}
	if err := whole(op, "weights", weights); err != nil {
		return err
	}
	if err := moverOf[*describe](h).setWeights(stream, r, addressOf(weights), 0); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

// setWeights enqueues what gives a Routing weights at home, or reads its experts into memory.
func (d *describe) setWeights(stream *cuda.Stream, r *spec.Batch, weights, experts uint64) error {
	if r.Tokens == 0 {
		return nil
	}
	p := r.Info.(*gpuRouting)
	p.rewrite()
	*d.weights.args = setWeightsArgs{
		home: p.at(d.h.routing.home), n: uint32(r.Tokens * d.h.Geometry.TopK), weights: weights, ids: experts,
	}
	return d.weights.launches[0].Start(stream)
}

// describeRows enqueues the description of the rows, unless it is there already, on the stream of the
// Prepare: one launch fills in all parts. A description in a capture is written by replays only, and
// each replay may prepare another routing, or bring other weights, so it does not count as there.
func (r *gpuRouting) describeRows() error {
	if r.filled {
		return nil
	}
	captured, err := enginegpu.Capturing(r.stream)
	if err != nil {
		return err
	}
	if err := r.fill(); err != nil {
		return err
	}
	r.filled = !captured && !r.replayed && !r.rewritten
	r.graphed = r.graphed || captured
	return nil
}

func (r *gpuRouting) fill() error {
	h, g := r.h, &r.h.Geometry
	if r.rows == nil {
		if err := r.checkUncaptured(); err != nil {
			return err
		}
		total := 0
		region := func(size int) int {
			from := total
			total += (size + 127) &^ 127
			return from
		}
		rows, at := g.Rows(), &r.description // the most that there can be: the memory is used again
		*at = describedRows{tokens: region(4 * rows), sources: region(4 * rows)}
		if g.Layout.ByExpert() {
			at.selections, at.weights = region(4*rows), region(4*rows)
		} else {
			at.experts, at.expertWeights = region(4*rows*g.TopK), region(4*rows*g.TopK)
		}
		var err error
		if r.rows, err = h.device.Context().Alloc(max(total, 1)); err != nil {
			return err
		}
	}
	base := r.rows.Pointer()
	zeros := r.description.weights
	if !g.Layout.ByExpert() {
		zeros = r.description.expertWeights
	}
	if err := r.stream.Memset(base, 0xFF, zeros); err != nil {
		return err
	}
	if err := r.stream.Memset(base.Add(zeros), 0, r.rows.Size()-zeros); err != nil {
		return err
	}
	d := moverOf[*describe](h)
	a := d.rows.begin()
	a.point(r)
	a.tokens, a.sources = uint64(base.Add(r.description.tokens)), uint64(base.Add(r.description.sources))
	a.selections, a.weights = uint64(base.Add(r.description.selections)), uint64(base.Add(r.description.weights))
	a.experts = uint64(base.Add(r.description.experts))
	a.expertWeights = uint64(base.Add(r.description.expertWeights))
	return d.rows.launches[0].Start(r.stream)
}

// point points a description at what r knows of its rows.
func (a *describeArgs) point(r *gpuRouting) {
	l := &r.h.routing
	a.recvRows, a.sent, a.recvTokens = r.at(l.recvRows), r.sent(), 0
	if r.h.Geometry.Layout == spec.TokenMajor {
		a.recvTokens = r.at(l.recvTokens)
	}
}

func describePrograms(arch string) []kernel.Spec { return []kernel.Spec{describeKernel(arch)} }

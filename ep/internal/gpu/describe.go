package gpu

import (
	"context"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/ep/spec"
)

func (h *gpu) prepareDescribe(f functions) (err error) {
	e := describeArgs{shape: h.shape(), ranks: uint32(h.Geometry.Ranks)}
	if h.Geometry.Layout.ByExpert() {
		e.byExpert = 1
	}
	if h.describing, err = f.describe.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 64}, Block: cuda.Dim{X: 256}},
		e); err != nil {
		return err
	}
	if h.describeArg, err = cuda.Arg[describeArgs](h.describing, 0); err != nil {
		return err
	}
	if h.weighing, err = f.weigh.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 64}, Block: cuda.Dim{X: 256}},
		weighArgs{}); err != nil {
		return err
	}
	h.weighArg, err = cuda.Arg[weighArgs](h.weighing, 0)
	return err
}

// describeArgs are the arguments of a description: the Describe of describe.cuh.
type describeArgs struct {
	shape                  shape
	ranks, byExpert        uint32
	recvRows, sent         uint64
	recvTokens             uint64
	tokens, sources        uint64
	selections, weights    uint64
	experts, expertWeights uint64
}

// weighArgs are the arguments of what gives a Routing weights, or tells its experts: the Weigh of
// describe.cu.
type weighArgs struct {
	home    uint64
	n, _    uint32
	weights uint64
	ids     uint64
}

func describeKernel(arch string) kernel.Spec {
	s := kernelSpec("describe", "describe.cu", arch, []string{"weft::ep::describe", "weft::ep::weigh"}, "describe.cuh")
	s.Defines["WEFT_DESCRIBE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(describeArgs{})))
	s.Defines["WEFT_WEIGH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(weighArgs{})))
	return s
}

// describedRows are where the description of rows stands in its memory.
type describedRows struct{ tokens, sources, selections, weights, experts, expertWeights int }

func (h *gpu) Weigh(ctx context.Context, s *weft.Stream, r *spec.Batch, weights weft.Tensor) error {
	const op = spec.OpWeigh
	stream := h.lane.Stream(s)
	if err := h.lane.EnterLocal(op, stream); err != nil {
		return err
	}
	if err := whole(op, "weights", weights); err != nil {
		return err
	}
	if err := h.startWeigh(stream, r, addressOf(weights), 0); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

// startWeigh enqueues what gives a Routing weights at home, or reads its experts into memory.
func (h *gpu) startWeigh(stream *cuda.Stream, r *spec.Batch, weights, experts uint64) error {
	if r.Tokens == 0 {
		return nil
	}
	p := r.Info.(*gpuRouting)
	p.rewrite()
	*h.weighArg = weighArgs{home: p.at(p.off.home), n: uint32(r.Tokens * h.Geometry.TopK), weights: weights, ids: experts}
	return h.weighing.Start(stream)
}

// describeRows enqueues, where the batch was prepared, what fills in what each row is, unless it was
// before: one launch fills in all parts. What a capture
// enqueues is there with its replays only, and they make what they prepare, and the weights that
// they bring, other ones each time.
func (r *gpuRouting) describeRows() error {
	if r.filled {
		return nil
	}
	status, err := r.stream.CaptureStatus()
	if err != nil {
		return err
	}
	if err := r.fill(); err != nil {
		return err
	}
	r.filled = status == cuda.NotCapturing && !r.replayed && !r.rewritten
	r.graphed = r.graphed || status != cuda.NotCapturing
	return nil
}

func (r *gpuRouting) fill() error {
	h, g := r.h, &r.h.Geometry
	if r.rows == nil {
		if err := r.captured(); err != nil {
			return err
		}
		total := 0
		region := func(size int) int {
			from := total
			total += (size + 127) &^ 127
			return from
		}
		rows, d := g.Rows(), &r.description // the most that there can be: the memory is used again
		*d = describedRows{tokens: region(4 * rows), sources: region(4 * rows)}
		if g.Layout.ByExpert() {
			d.selections, d.weights = region(4*rows), region(4*rows)
		} else {
			d.experts, d.expertWeights = region(4*rows*g.TopK), region(4*rows*g.TopK)
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
	a := h.describeArg
	h.pointDescription(a, r)
	a.tokens, a.sources = uint64(base.Add(r.description.tokens)), uint64(base.Add(r.description.sources))
	a.selections, a.weights = uint64(base.Add(r.description.selections)), uint64(base.Add(r.description.weights))
	a.experts = uint64(base.Add(r.description.experts))
	a.expertWeights = uint64(base.Add(r.description.expertWeights))
	return h.describing.Start(r.stream)
}

// pointDescription points a description at what r knows of its rows.
func (h *gpu) pointDescription(a *describeArgs, r *gpuRouting) {
	a.recvRows, a.sent, a.recvTokens = r.at(r.off.recvRows), r.sent(), 0
	if h.Geometry.Layout == spec.TokenMajor {
		a.recvTokens = r.at(r.off.recvTokens)
	}
}

package gpu

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/thresholds"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

func (h *gpu) Combine(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	if err := h.enterCombine(ctx, s, &a, flagSend|flagReceive|h.weighted()); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

func (h *gpu) SendCombine(ctx context.Context, s *weft.Stream, a spec.SumArgs) (*weft.Work, error) {
	if err := h.enterCombine(ctx, s, &a, flagSend|h.weighted()); err != nil {
		return nil, err
	}
	half := h.lane.Sent(spec.OpCombine, s)
	return weft.NewWork(func(ctx context.Context) error {
		stream, err := half.Resume()
		if err != nil {
			return err
		}
		if err := h.lane.Receive(stream, h.combineLaunch(flagReceive|h.weighted())); err != nil {
			return err
		}
		return half.Finish(ctx)
	}), nil
}

// weighted says whether sums are.
func (h *gpu) weighted() uint32 {
	if h.Spec.Weighting == spec.Weighted {
		return flagWeighted
	}
	return 0
}

// enterCombine checks the arguments of a combine and enqueues it.
func (h *gpu) enterCombine(ctx context.Context, s *weft.Stream, a *spec.SumArgs, flags uint32) error {
	const op = spec.OpCombine
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := h.checkCombineOperands(op, a); err != nil {
		return err
	}
	if !a.Weights.IsZero() {
		if err := whole(op, "weights", a.Weights); err != nil {
			return err
		}
		a.Batch.Weights = spec.WeightsAtHome
		if h.tuning.Pulls || flags&phases != flagSend|flagReceive {
			if err := h.startWeigh(stream, a.Batch, addressOf(a.Weights), 0); err != nil {
				return err
			}
		} else { // the kernel reads them where they are, and keeps them
			a.Batch.Info.(*gpuRouting).rewrite()
			h.combineArg.weights = addressOf(a.Weights)
			defer func() { h.combineArg.weights = 0 }()
		}
	}
	return h.startCombine(tagCombine, stream, a, flags)
}

// checkCombineOperands says what is wrong with the arguments of a combine, but for its own weights
// if it has some.
func (h *gpu) checkCombineOperands(op string, a *spec.SumArgs) error {
	if err := cmp.Or(h.CheckSum(op, a), aligned(op, "rows", a.Rows), aligned(op, "output rows", a.Out)); err != nil {
		return err
	}
	return cmp.Or(aligned(op, "biases", a.Bias[0]), aligned(op, "biases", a.Bias[1]))
}

// startCombine enqueues what brings rows home; a pull brings gradients of weights besides.
func (h *gpu) startCombine(call uint32, stream *cuda.Stream, a *spec.SumArgs, flags uint32) error {
	if h.tuning.Pulls {
		if err := h.setPull(call, stream, a); err != nil {
			return err
		}
	} else {
		h.setCombine(call, a)
	}
	return h.lane.Start(stream, h.combineLaunch(flags))
}

// setCombine points the launch at the caller's tensors.
func (h *gpu) setCombine(call uint32, c *spec.SumArgs) {
	a, p := h.combineArg, c.Batch.Info.(*gpuRouting)
	a.routed, a.recvRows, a.sent = p.at(p.off.home), p.at(p.off.recvRows), p.sent()
	a.call, a.y, a.out = call, addressOf(c.Rows), addressOf(c.Out)
	a.tokens, a.biases = uint32(c.Batch.Tokens), uint32(c.Biases)
	for i, b := range c.Bias[:c.Biases] {
		a.bias[i] = addressOf(b)
	}
}

// combineLaunch is the launch that does so much of a combine.
func (h *gpu) combineLaunch(flags uint32) *cuda.Launch {
	if h.tuning.Pulls {
		h.direct.pull.args.flags = flags | h.direct.pull.bulk
		return h.direct.pull.launch
	}
	a := h.combineArg
	a.flags, a.free = flags, h.ring.Free(h.lane.Capture())
	if flags&phases == flagSend|flagReceive {
		return h.fusedCombining
	}
	return h.combining
}

func (h *gpu) prepareCombine(f functions, config cuda.LaunchConfig) (err error) {
	s, r := &h.Spec, &h.regions
	c := combineArgs{
		shape: h.shape(), senders: spec.Senders(h.blocks.combine, h.tuning.CombineSenders),
		first: uint32(h.locals.combineCounts),
		heads: uint64(r.combineHeads), home: uint64(r.home), returned: uint64(r.returned), turnBytes: uint64(r.homeTurn),
		rowBytes: uint32(s.OutputSize()), pieces: device.NewDivisor(spec.CeilDiv(s.OutputSize(), spec.UnitBytes)),
	}
	if s.Combines() && h.Geometry.Ranks > 1 {
		c.groups = device.NewDivisor(combineGroups(&h.tuning, s, h.Geometry.Ranks))
	}
	if h.combining, err = f.combine.Prepare(config, c); err != nil {
		return err
	}
	if h.fusedCombining = h.combining; f.fusedCombine != nil {
		if h.fusedCombining, err = h.combining.For(f.fusedCombine); err != nil {
			return err
		}
	}
	h.combineArg, err = cuda.Arg[combineArgs](h.combining, 0)
	return err
}

// combineFormOf is that of a combine through slots.
func combineFormOf(t *spec.Choice, s *spec.Spec, ranks int) combineForm {
	f := combineForm{
		sums: spec.CombineSums(*s), bySelection: s.Reduction == spec.PartialBySelection,
		of: s.Output, kind: byValue,
	}
	ranks = max(ranks, thresholds.CombineRanks)
	switch {
	case !t.ValueCombine:
		f.kind, f.group = byFlag, 4
	case f.sums == spec.ExactSums || ranks > 4:
		f.group = 8
	case ranks > 2:
		f.group = 4
	default:
		f.group = 2
	}
	return f
}

// fusedCombineFormOf is that of calls that send and receive at once; they may have no other than the
// rest.
func fusedCombineFormOf(t *spec.Choice, s *spec.Spec, ranks int) combineForm {
	f := combineFormOf(t, s, ranks)
	if f.kind == byValue {
		f.kind = byMany
	}
	return f
}

// combineGroups is for how many groups of ranks a warp sends, one after another: SOURCES of
// slots_combine.cu in each.
func combineGroups(t *spec.Choice, s *spec.Spec, ranks int) int {
	sources := 1
	if !s.Layout.ByExpert() {
		switch combineFormOf(t, s, ranks).group {
		case 4:
			sources = 3
		case 8:
			sources = 4
		}
	}
	return spec.CeilDiv(ranks-1, sources)
}

// combineArgs are the arguments of a combine: the Combine of slots_combine.cu.
type combineArgs struct {
	shape                           shape
	state                           uint64
	heads, home, returned           uint64
	turnBytes                       uint64
	pieces, groups                  device.Divisor
	rowBytes, flags, tokens, biases uint32
	senders, free                   uint32
	first, call                     uint32
	routed, recvRows, sent          uint64
	y, out                          uint64
	bias                            [2]uint64
	filled, credits                 uint64
	weights                         uint64
	group                           device.Group
}

// combineForm is what handles differ in whose combines are programs of their own.
type combineForm struct {
	sums        int
	bySelection bool
	of          weft.DType
	kind        kind
	group       int // rows that a thread awaits at once: ranks, or selections
}

func combineKernel(f combineForm, arch string) kernel.Spec {
	name := fmt.Sprintf("combine, %s %d, %d of %v", f.kind, f.group, f.sums, f.of)
	if f.bySelection {
		name += " by selection"
	}
	s := kernelSpec(name, "slots_combine.cu", arch, []string{slotsCombine})
	s.Defines["WEFT_FORM"], s.Defines["WEFT_BY_SELECTION"] = strconv.Itoa(f.sums), number(f.bySelection)
	s.Defines["WEFT_TYPE"] = strconv.Itoa(typeNumber(f.of))
	s.Defines["WEFT_VALUE"], s.Defines["WEFT_GROUP"] = strconv.FormatBool(f.kind != byFlag), strconv.Itoa(f.group)
	s.Defines["WEFT_FUSED"] = strconv.FormatBool(f.kind == byMany)
	s.Defines["WEFT_COMBINE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(combineArgs{})))
	return s
}

// addCombine lays out what a combine has that stores rows at their homes.
func (r *regions) addCombine(g *spec.Geometry, s spec.Spec, t spec.Choice, blocks int) {
	r.homeTurns = 2
	if t.ValueCombine {
		r.homeTurns = 3
	}
	slots := g.Ranks
	if s.Layout.ByExpert() && s.Reduction == spec.Exact {
		slots = g.TopK
	}
	if s.Combines() {
		r.homeTurn = int64(slots) * int64(g.Tokens) * int64(s.OutputSize())
	}
	r.combineHeads = r.Ones(3 * int64(g.Ranks) * device.OpeningBytes)
	r.returned = r.Zeros(int64(g.Ranks) * int64(blocks) * 4)
	if size := r.homeTurns * r.homeTurn; t.ValueCombine {
		r.home = r.Ones(size)
	} else {
		r.home = r.Raw(size)
	}
}

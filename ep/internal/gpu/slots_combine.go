package gpu

import (
	"cmp"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/thresholds"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// slotCombine brings rows, or sums of those at a rank, home by slots: the kernel of
// slots_combine.cu.
type slotCombine struct {
	launcher[combineArgs] // the second is of calls that send and receive
	h                     *handle
	request               request

	heads, home, returned int64 // offsets in the window
	turnBytes             int64 // of a turn of home
	filled                int64 // in this GPU's own memory

	carry carrier[combineArgs] // to and from far ranks
}

func (c *slotCombine) load(p *programs) {
	h := c.h
	form := combineFormOf(&h.choice, &h.Spec, h.Geometry.Ranks)
	fused := fusedCombineFormOf(&h.choice, &h.Spec, h.Geometry.Ranks)
	p.add(combineKernel(form, p.arch), c.carry.with(form.ports, &c.functions[0])...)
	if fused != form {
		p.add(combineKernel(fused, p.arch), &c.functions[1])
	}
}

func (c *slotCombine) want() *request {
	t := &c.h.choice
	c.request = request{
		of: ofCombine, functions: append(c.functions[:], c.carry.functions[:]...),
		grid:   grid{moving: t.CombineBlocks, notify: 1, threads: t.CombineThreads},
		widens: c.h.Spec.Tuning.Combine.Threads == 0,
	}
	return &c.request
}

func (c *slotCombine) layout(window, local *enginegpu.Workspace) {
	g, s := &c.h.Geometry, &c.h.Spec
	slots := g.Ranks
	if s.Layout.ByExpert() && s.Reduction == spec.Exact {
		slots = g.TopK
	}
	c.turnBytes = int64(slots) * int64(g.Tokens) * int64(s.OutputSize())
	c.heads = window.Ones(3 * int64(g.Ranks) * device.OpeningBytes)
	c.returned = window.Zeros(int64(g.Ranks) * int64(c.request.moving) * 4)
	if c.h.choice.ValueCombine {
		c.home = window.Ones(3 * c.turnBytes)
	} else {
		c.home = window.Raw(2 * c.turnBytes)
	}
	words := spec.CeilDiv(device.Domain(g.Ranks), 64) // of a set of ranks
	c.filled = local.Zeros(3 * (int64(g.Tokens) + 1) * int64(words) * 8)
}

func (c *slotCombine) prepare() error {
	h := c.h
	s, t := &h.Spec, &h.choice
	a := combineArgs{
		shape: h.shape(), senders: spec.Senders(c.request.moving, t.CombineSenders), first: uint32(c.request.first),
		heads: uint64(c.heads), home: uint64(c.home), returned: uint64(c.returned), turnBytes: uint64(c.turnBytes),
		rowBytes: uint32(s.OutputSize()), pieces: device.NewDivisor(spec.CeilDiv(s.OutputSize(), spec.UnitBytes)),
	}
	if h.Geometry.Ranks > 1 {
		a.groups = device.NewDivisor(combineGroups(t, s, h.Geometry.Ranks))
	}
	return cmp.Or(c.layOut(h.config(c.request.grid, t.DependentCombine), a), c.carry.prepare(h, c.request, a))
}

func (c *slotCombine) point() {
	h := c.h
	c.pointed(func(a *combineArgs) {
		a.group, a.state = h.lane.Group(h.waits.combine), h.localAt(0)
		a.filled, a.credits = h.localAt(c.filled), h.localAt(h.credits)
	})
	c.carry.point(h)
}

// keepsWeights implements [combiner]. Only kernels that send and receive do.
func (c *slotCombine) keepsWeights(flags uint32) bool { return flags&phases == flagSend|flagReceive }

func (c *slotCombine) bringsScalars() bool { return false }

func (c *slotCombine) buffer() weft.Tensor { return weft.Tensor{} }

func (c *slotCombine) send(stream *cuda.Stream, call uint32, s spec.SumArgs, flags uint32) error {
	h, a, p := c.h, c.begin(), s.Batch.Info.(*gpuRouting)
	a.routed, a.recvRows, a.sent = p.at(h.routing.home), p.at(h.routing.recvRows), p.sent()
	a.call, a.y, a.out = call, addressOf(s.Rows), addressOf(s.Out)
	a.tokens, a.biases = uint32(s.Batch.Tokens), uint32(s.Biases)
	for i, b := range s.Bias[:s.Biases] {
		a.bias[i] = addressOf(b)
	}
	if c.keepsWeights(flags) {
		a.weights = addressOf(s.Weights)
	}
	return c.enqueue(stream, flags)
}

func (c *slotCombine) receive(stream *cuda.Stream, flags uint32) error {
	return c.enqueue(stream, flags)
}

// enqueue enqueues so much of the call: one launch, or between hosts several.
func (c *slotCombine) enqueue(stream *cuda.Stream, flags uint32) error {
	return enqueue(c.h, c, &c.carry, c.args, stream, flags)
}

// doing is the launch that does so much of the call.
func (c *slotCombine) doing(flags uint32) *cuda.Launch {
	a := c.args
	a.flags, a.free = flags, c.h.ring.Free(c.h.lane.Capture())
	if flags&phases == flagSend|flagReceive {
		return c.launches[1]
	}
	return c.launches[0]
}

// slotCombinePrograms are those of all handles.
func slotCombinePrograms(arch string) (all []kernel.Spec) {
	for _, sums := range []int{spec.RankSums, spec.PartialSums, spec.ExactSums} {
		for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
			for _, bySelection := range []bool{false, true} {
				if sums == spec.ExactSums && bySelection {
					continue
				}
				f := combineForm{sums: sums, bySelection: bySelection, of: of, kind: byFlag, group: 4}
				all = append(all, combineKernel(f, arch))
				ports := f
				ports.ports = true
				all = append(all, combineKernel(ports, arch))
				if f.kind = byFew; sums == spec.ExactSums {
					f.group = 8
					all = append(all, combineKernel(f, arch))
				}
				for _, f.group = range []int{2, 4, 8} {
					if sums == spec.ExactSums && f.group < 8 {
						continue
					}
					for _, f.kind = range []kind{byValue, byMany} {
						all = append(all, combineKernel(f, arch))
					}
				}
			}
		}
	}
	return all
}

// combineFormOf is that of a combine through slots.
func combineFormOf(t *spec.Choice, s *spec.Spec, ranks int) combineForm {
	f := combineForm{
		sums: spec.CombineSums(*s), bySelection: s.Reduction == spec.PartialBySelection,
		of: s.Output, kind: byValue, ports: t.Ports,
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
	switch {
	case f.kind == byFlag:
	case t.CombineHalves:
		f.kind = byFew
	default:
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

// combineArgs are the arguments of a combine: the Combine of slots_combine.cuh.
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
	group       int  // rows that a thread awaits at once: ranks, or selections
	ports       bool // there are far ranks
}

func combineKernel(f combineForm, arch string) kernel.Spec {
	name := fmt.Sprintf("combine, %s %d, %d of %v", f.kind, f.group, f.sums, f.of)
	if f.bySelection {
		name += " by selection"
	}
	s := kernelSpec(name, "slots_combine.cu", arch, []string{slotsCombine},
		"slots_combine.cuh", "slots_return.cuh", "slots_sum.cuh")
	if f.ports {
		carryBy(&s, portsCombine, "ports_combine.cuh")
	}
	if f.kind != byFlag {
		s.Defines[device.DomainDefine] = strconv.Itoa(device.LaneRanks)
	}
	s.Defines["WEFT_FORM"], s.Defines["WEFT_BY_SELECTION"] = strconv.Itoa(f.sums), number(f.bySelection)
	s.Defines["WEFT_TYPE"] = strconv.Itoa(typeNumber(f.of))
	s.Defines["WEFT_VALUE"], s.Defines["WEFT_GROUP"] = strconv.FormatBool(f.kind != byFlag), strconv.Itoa(f.group)
	s.Defines["WEFT_FUSED"] = strconv.FormatBool(f.kind == byMany || f.kind == byFew)
	s.Defines["WEFT_HALVES"] = number(f.kind == byFew)
	s.Defines["WEFT_COMBINE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(combineArgs{})))
	return s
}

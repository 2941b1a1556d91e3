package gpu

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/ep/spec"
)

// prepareStaging lays out the copy of a combine's rows to where the other ranks read them, for
// handles of whose rows the host knows only the most that there can be: tensors have room for
// those, of which the rows that are there may be a part. Like a copy of the driver's it may use all
// SMs.
func (h *gpu) prepareStaging(f functions, config cuda.LaunchConfig) (err error) {
	g, s := &h.Geometry, &h.Spec
	a := copyArgs{
		described: *h.describeArg, zones: h.copyArg.zones,
		pieces: device.NewDivisor(spec.CeilDiv(s.OutputSize(), copyPiece)), rowBytes: uint32(s.OutputSize()),
	}
	a.described.ranks = 0 // nothing is to be described
	config.Grid.X = uint32(max(1, min(h.device.SMs(),
		spec.CeilDiv(g.Rows()*spec.CeilDiv(s.OutputSize(), copyPiece), copyThreads/32))))
	if h.staging, err = f.copy.Prepare(config, a); err != nil {
		return err
	}
	h.stageArg, err = cuda.Arg[copyArgs](h.staging, 0)
	return err
}

// stage copies a combine's rows to where the other ranks read them.
func (h *gpu) stage(stream *cuda.Stream, r *spec.Batch, y weft.Tensor) error {
	to := h.lane.Window().Pointer().Add(int(h.regions.stage))
	if h.staging == nil || addressOf(y)%16 != 0 {
		return stream.Copy(to, y.Pointer(), y.Bytes())
	}
	a := h.stageArg
	a.zoneRows, a.counts = h.zonesOf(r, y.Elems()/h.Spec.Hidden)
	a.rows, a.toRows = addressOf(y), uint64(to)
	return h.staging.Start(stream)
}

// pullArgs are the arguments of a combine: the Pull of direct_pull.cu.
type pullArgs struct {
	shape                    shape
	state                    uint64
	openings, marks          uint64
	first, flags, tokens, at uint32
	pieces                   device.Divisor
	rowBytes, biases, chunk  uint32
	chunks                   device.Divisor
	carriers, depth, most    uint32
	call                     uint32
	home, places, described  uint64
	out                      uint64
	bias                     [2]uint64
	scalars                  scalarArgs
	group                    device.Group
}

// pullForm is what handles differ in whose combines of rows where they are are programs of their
// own.
type pullForm struct {
	order string // of a token's rows: the Order of direct_pull.cu
	of    weft.DType
}

func pullKernel(f pullForm, arch string) kernel.Spec {
	s := kernelSpec(fmt.Sprintf("pull of %v, %s", f.of, strings.ToLower(f.order)), "direct_pull.cu", arch,
		[]string{directCombine}, "direct.cuh", "scalars.cuh")
	s.Defines["WEFT_TYPE"], s.Defines["WEFT_ORDER"] = strconv.Itoa(typeNumber(f.of)), f.order
	s.Defines["WEFT_PULL_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(pullArgs{})))
	return s
}

// setPull points the launch at the caller's tensors. Rows that were received are read where they
// are, others are copied into the window.
func (h *gpu) setPull(call uint32, stream *cuda.Stream, c *spec.SumArgs) error {
	a, p := h.direct.pull.args, c.Batch.Info.(*gpuRouting)
	at, ok := h.readable(c.Rows)
	if !ok {
		at = h.regions.stage
		if err := h.stage(stream, c.Batch, c.Rows); err != nil {
			return err
		}
	}
	a.home, a.places, a.described = p.at(p.off.home), p.at(p.off.places), p.at(p.off.described)
	a.call, a.out, a.tokens, a.biases = call, addressOf(c.Out), uint32(c.Batch.Tokens), uint32(c.Biases)
	a.at = uint32(at / 16)
	for i, b := range c.Bias[:c.Biases] {
		a.bias[i] = addressOf(b)
	}
	a.scalars.set(p, c)
	return nil
}

// readable says where in the window a tensor is that others read where it is: where placed rows
// were received, in the combine buffer, or in that of gradients.
func (h *gpu) readable(t weft.Tensor) (at int64, ok bool) {
	within := func(from, size int64) bool { return at >= from && at+int64(t.Bytes()) <= from+size }
	at, r := int64(addressOf(t)-uint64(h.lane.Window().Pointer())), &h.regions
	ok = h.tuning.Placed && within(r.blocks, r.Size()-r.blocks) || h.tuning.Pulls && within(r.stage, h.stageBytes()) ||
		h.Spec.Combines() && within(r.gradients, int64(h.Geometry.Tokens)*int64(h.Spec.OutputSize()))
	return at, ok
}

// stageBytes is how large the copy is that others read of rows that they cannot read where they
// are.
func (h *gpu) stageBytes() int64 { return int64(h.Geometry.Rows()) * int64(h.Spec.OutputSize()) }

func (h *gpu) CombineBuffer() weft.Tensor {
	if !h.tuning.Pulls {
		return weft.Tensor{}
	}
	return h.sums(h.regions.stage, h.Geometry.Rows())
}

func (h *gpu) GradientBuffer() weft.Tensor {
	if !h.Spec.Combines() {
		return weft.Tensor{}
	}
	return h.sums(h.regions.gradients, h.Geometry.Tokens)
}

// sums views memory in the window as so many rows of the Output type.
func (h *gpu) sums(at int64, rows int) weft.Tensor {
	return weft.Tensor{
		Data: pointer(h.lane.Window().Pointer().Add(int(at))), DType: h.Spec.Output,
		Shape: []int{rows, h.Spec.Hidden},
	}
}

// pullFormOf is that of a combine that reads rows where they are.
func pullFormOf(s *spec.Spec) pullForm {
	f := pullForm{"RANKS", s.Output}
	switch {
	case s.Layout.ByExpert():
		f.order = "EXACT"
	case s.Reduction == spec.PartialBySelection:
		f.order = "SELECTIONS"
	}
	return f
}

// pull is the kernel of a combine: the home of a token reads its rows where they are.
type pull struct {
	launch *cuda.Launch
	args   *pullArgs
	bulk   uint32 // flagBulk, if rows go by bulk copies
}

// newPull lays out the launch of a handle whose dispatches have so many blocks.
func (h *gpu) newPull(f functions, config cuda.LaunchConfig, dispatchBlocks uint64) (*pull, error) {
	g, s, r := &h.Geometry, &h.Spec, &h.regions
	ranks := uint64(g.Ranks)
	a := pullArgs{
		shape: h.shape(), openings: uint64(r.openings) + 3*ranks*device.OpeningBytes,
		marks: uint64(r.marks) + ranks*dispatchBlocks*4, first: uint32(h.locals.combineCounts),
		pieces:   device.NewDivisor(spec.CeilDiv(s.OutputSize(), spec.PullUnits*spec.UnitBytes)),
		rowBytes: uint32(s.OutputSize()),
		scalars:  scalarArgs{at: uint64(r.pullScalars), topk: device.NewDivisor(g.TopK)},
	}
	bulk, err := h.bulk()
	if err != nil {
		return nil, err
	}
	k, most := &pull{}, s.PullRows(g.Ranks)
	if c := s.PullCarry(int(config.Block.X), most); bulk && c.Warps > 0 {
		k.bulk = flagBulk
		a.chunk, a.chunks = uint32(c.Chunk), device.NewDivisor(spec.CeilDiv(s.OutputSize(), c.Chunk))
		a.carriers, a.depth, a.most = uint32(c.Warps), spec.PullDepth, uint32(most)
		config.Shared = c.Warps * spec.PullDepth * most * c.Chunk
		if err := f.combine.SetMaxDynamicShared(config.Shared); err != nil {
			return nil, err
		}
	}
	if k.launch, err = f.combine.Prepare(config, a); err == nil {
		k.args, err = cuda.Arg[pullArgs](k.launch, 0)
	}
	return k, err
}

func (k *pull) point(group device.Group, at func(int64) uint64) {
	k.args.group, k.args.state = group, at(0)
}

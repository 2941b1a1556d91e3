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
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// pull combines rows that a token's home reads where they are: the kernel of direct_pull.cu. Rows
// that were received stay where they came to, others are staged in the window.
type pull struct {
	launcher[pullArgs]
	staging launcher[copyArgs] // of handles whose counts the GPU alone has

	h       *handle
	request request
	bulk    uint32 // flagBulk, if rows go by bulk copies

	openings, marks, stage, scalars int64 // offsets in the window
}

// pullArgs are the arguments of a combine: the Pull of direct_pull.cu.
type pullArgs struct {
	shape                     shape
	state                     uint64
	openings, marks           uint64
	first, flags, tokens, at  uint32
	pieces                    device.Divisor
	rowBytes, biases, chunk   uint32
	chunks                    device.Divisor
	carriers, depth, most     uint32
	call                      uint32
	home, destRows, described uint64
	out                       uint64
	bias                      [2]uint64
	scalars                   scalarArgs
	group                     device.Group
}

// pullForm is what makes a combine that reads rows in place a program of its own.
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

func (k *pull) load(p *programs) {
	p.add(pullKernel(pullFormOf(&k.h.Spec), p.arch), &k.functions[0])
}

func (k *pull) want() *request {
	c := &k.h.choice
	k.request = request{of: ofCombine, grid: grid{moving: c.CombineBlocks, threads: c.CombineThreads}, whole: true}
	return &k.request
}

func (k *pull) layout(window, _ *enginegpu.Workspace) {
	g, ranks := &k.h.Geometry, int64(k.h.Geometry.Ranks)
	k.openings = window.Ones(3 * ranks * device.OpeningBytes)
	k.marks = window.Zeros(ranks * int64(k.request.moving) * 4)
	size := int64(g.Rows()) * int64(k.h.Spec.OutputSize())
	k.stage = window.Raw(size)
	k.h.lend(k.stage, size)
	k.scalars = window.Raw(2 * int64(g.Tokens) * int64(g.TopK) * 4)
}

func (k *pull) prepare() error {
	h, s := k.h, &k.h.Spec
	a := pullArgs{
		shape: h.shape(), openings: uint64(k.openings), marks: uint64(k.marks), first: uint32(k.request.first),
		pieces:   device.NewDivisor(spec.CeilDiv(s.OutputSize(), spec.PullUnits*spec.UnitBytes)),
		rowBytes: uint32(s.OutputSize()),
		scalars:  scalarArgs{at: uint64(k.scalars), topk: device.NewDivisor(h.Geometry.TopK)},
	}
	bulk, err := h.bulk()
	if err != nil {
		return err
	}
	config, most := h.config(k.request.grid, false), s.PullRows(h.Geometry.Ranks)
	if c := s.PullCarry(k.request.threads, most); bulk && c.Warps > 0 {
		k.bulk = flagBulk
		a.chunk, a.chunks = uint32(c.Chunk), device.NewDivisor(spec.CeilDiv(s.OutputSize(), c.Chunk))
		a.carriers, a.depth, a.most = uint32(c.Warps), spec.PullDepth, uint32(most)
		config.Shared = c.Warps * spec.PullDepth * most * c.Chunk
	}
	if s.Counts == spec.DeviceCounts {
		if err := moverOf[*copier](h).stages(&k.staging); err != nil {
			return err
		}
	}
	return k.layOut(config, a)
}

func (k *pull) point() {
	h := k.h
	k.pointed(func(a *pullArgs) { a.group, a.state = h.lane.Group(h.waits.combine), h.localAt(0) })
}

func (k *pull) keepsWeights(uint32) bool { return false }

func (k *pull) bringsScalars() bool { return true }

func (k *pull) buffer() weft.Tensor { return k.h.sums(k.stage, k.h.Geometry.Rows()) }

func (k *pull) send(stream *cuda.Stream, call uint32, s spec.SumArgs, flags uint32) error {
	h, p := k.h, s.Batch.Info.(*gpuRouting)
	at, ok := h.readable(s.Rows)
	if !ok {
		at = k.stage
		if err := k.stageRows(stream, s.Batch, s.Rows); err != nil {
			return err
		}
	}
	a := k.begin()
	a.home, a.destRows, a.described = p.at(h.routing.home), p.at(h.routing.destRows), p.at(h.routing.described)
	a.call, a.out, a.tokens, a.biases = call, addressOf(s.Out), uint32(s.Batch.Tokens), uint32(s.Biases)
	a.at, a.flags = uint32(at/16), flags|k.bulk
	for i, b := range s.Bias[:s.Biases] {
		a.bias[i] = addressOf(b)
	}
	a.scalars.set(p, &s)
	return h.lane.Start(stream, k.launches[0])
}

func (k *pull) receive(stream *cuda.Stream, flags uint32) error {
	k.args.flags = flags | k.bulk
	return k.h.lane.Receive(stream, k.launches[0])
}

// stageRows copies a combine's rows to where peers read them.
func (k *pull) stageRows(stream *cuda.Stream, r *spec.Batch, y weft.Tensor) error {
	to := k.h.lane.Window().Pointer().Add(int(k.stage))
	if k.h.Spec.Counts != spec.DeviceCounts || addressOf(y)%16 != 0 {
		return stream.Copy(to, y.Pointer(), y.Bytes())
	}
	a := k.staging.begin()
	a.zoneRows, a.counts = moverOf[*copier](k.h).zonesOf(r, y.Elems()/k.h.Spec.Hidden)
	a.rows, a.toRows = addressOf(y), uint64(to)
	return k.staging.launches[0].Start(stream)
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

// pullPrograms are those of all handles.
func pullPrograms(arch string) (all []kernel.Spec) {
	for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
		for _, order := range []string{"RANKS", "SELECTIONS", "EXACT"} {
			all = append(all, pullKernel(pullForm{order, of}, arch))
		}
	}
	return all
}

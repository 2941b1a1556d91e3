package gpu

import (
	"cmp"
	"context"
	"math/bits"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/ep/spec"
)

// placeArgs are the arguments of a prepare: the Place of direct_row_map.cu.
type placeArgs struct {
	shape                              shape
	state                              uint64
	openings, totals, records          uint64
	befores, marks                     uint64
	flags, tokens, call, rows, align   uint32
	blocks, mapEntries, _              uint32
	ids, weights                       uint64
	home, places, recvRows, recvTokens uint64
	described, ranges                  uint64
	counts, bases                      uint64
	group                              device.Group
}

// placeForm is what handles differ in whose prepares are programs of their own.
type placeForm struct {
	byRank bool // a token has one row at a rank
	even   bool // a Map has a bucket for all that is counted, and selections of a token are fours
}

func placeKernel(form placeForm, arch string) kernel.Spec {
	name := "place"
	if form.byRank {
		name += ", by rank"
	}
	if form.even {
		name += ", even"
	}
	s := kernelSpec(name, "direct_row_map.cu", arch, []string{directRowMap}, "direct.cuh")
	s.Defines["WEFT_PLACE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(placeArgs{})))
	s.Defines["WEFT_BY_RANK"], s.Defines["WEFT_EVEN"] = number(form.byRank), number(form.even)
	return s
}

// A prepare has placeBlocks blocks with something to do, if there are as many, or more if each
// would have more than placeTokens tokens: a block asks all before it what they have counted.
const placeBlocks, placeTokens = 32, 512

// What a block of a prepare counts stands in two Maps of direct_row_map.cu, and what their numbers
// are raised by behind them, if there is room: there are mapBuckets things to count at a time. A
// map has mapEntries entries, or fewMapEntries on a GPU with little shared memory.
const mapBuckets, mapEntries, fewMapEntries, placeOwnBytes = 1024, 9 << 10, 2 << 10, 1 << 10

func mapBytes(entries int) int { return entries*8 + mapBuckets*4 }

func placeBytes(entries int) int { return 2*mapBytes(entries) + 4*mapBuckets*4 }

// A block of a prepare has two threads for every placeQuad selections of a token, QUAD of
// direct_row_map.cu, within these bounds: a token has a power of two.
const fewestPlaceThreads, mostPlaceThreads, placeQuad = 256, 768, 4

func placeThreads(g *spec.Geometry, blocks int) int {
	lanes := 1 << bits.Len(uint((g.TopK-1)/placeQuad))
	return min(max(fewestPlaceThreads, spec.CeilDiv(spec.CeilDiv(g.Tokens, blocks)*lanes, 32)*64), mostPlaceThreads)
}

// placing is how many of so many blocks have something to do in a prepare.
func placing(g *spec.Geometry, blocks int) int {
	return min(blocks, max(placeBlocks, spec.CeilDiv(g.Tokens, placeTokens)))
}

// mapEntries is how many entries a Map has on this GPU.
func (h *gpu) mapEntries() (int, error) {
	shared, err := h.device.Context().Device().Attribute(cuda.SharedMemoryPerBlockOptIn)
	if shared >= placeBytes(mapEntries)+placeOwnBytes {
		return mapEntries, err
	}
	return fewMapEntries, err
}

func (h *placed) Prepare(ctx context.Context, s *weft.Stream, a spec.PrepareArgs) (*spec.Batch, error) {
	stream, err := h.lane.Enter(ctx, spec.OpPrepare, s)
	if err != nil {
		return nil, err
	}
	r, err := h.place(ctx, spec.OpPrepare, tagPrepare, stream, a.TopK, a.Weights)
	if err != nil {
		return nil, err
	}
	if err := h.lane.Finish(ctx, s); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// place enqueues a prepare, and waits for its counts if the host wants them.
func (h *placed) place(ctx context.Context, op string, call uint32, stream *cuda.Stream, topk,
	weights weft.Tensor,
) (*spec.Batch, error) {
	if err := h.checkSelections(op, topk, weights); err != nil {
		return nil, err
	}
	if h.Spec.Counts == spec.HostCounts {
		if status, err := stream.CaptureStatus(); err != nil || status != cuda.NotCapturing {
			return nil, cmp.Or(err, weft.Unsupportedf("%s: in a capture the host cannot be told how many "+
				"rows come; make the handle with DeviceCounts", op))
		}
	}
	r, err := h.route(stream, topk.Shape[0], !weights.IsZero())
	if err != nil {
		return nil, err
	}
	a, p := h.direct.rowMap.args, r.Info.(*gpuRouting)
	a.home, a.places = p.at(p.off.home), p.at(p.off.places)
	a.recvRows, a.recvTokens = p.at(p.off.recvRows), p.at(p.off.recvTokens)
	a.described, a.ranges = p.at(p.off.described), p.at(p.off.ranges)
	a.ids, a.weights, a.tokens, a.call = addressOf(topk), addressOf(weights), uint32(r.Tokens), call
	a.flags &^= flagWideIDs
	if topk.DType == weft.Int64 {
		a.flags |= flagWideIDs
	}
	if err := h.lane.Start(stream, h.direct.rowMap.launch); err != nil {
		r.Release()
		return nil, err
	}
	if err := cmp.Or(h.settle(ctx, r), p.overflow()); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// overflow says which rank has no room for its rows, if that is to be refused: the same on every
// rank, which all have been told how many come to each.
func (r *gpuRouting) overflow() error {
	h, g := r.h, &r.h.Geometry
	if h.Spec.Overflow != spec.OverflowRefuse || !r.counted {
		return nil
	}
	for rank := range g.Ranks {
		e := &spec.OverflowError{Rank: rank, Expert: -1, Demand: int(r.described.wanted[rank]), Capacity: g.Capacity}
		if g.Layout == spec.ExpertMajor {
			if e.Expert = int(r.described.over[rank]); e.Expert < 0 {
				continue
			}
			e.Demand = int(r.described.excess[rank])
		}
		if e.Demand > e.Capacity {
			return e
		}
	}
	return nil
}

func placeFormOf(s *spec.Spec, ranks int) placeForm {
	return placeForm{byRank: s.Layout == spec.TokenMajor, even: s.Experts+ranks <= mapBuckets && s.TopK%placeQuad == 0}
}

// rowMap is the kernel of a prepare: it gives every row its final place.
type rowMap struct {
	launch *cuda.Launch
	args   *placeArgs
}

// newRowMap lays out the launch, with as many blocks as a dispatch has.
func (h *gpu) newRowMap(f functions, dispatch cuda.LaunchConfig) (*rowMap, error) {
	g, r := &h.Geometry, &h.regions
	entries, err := h.mapEntries()
	if err != nil {
		return nil, err
	}
	a := placeArgs{
		shape: h.shape(), openings: uint64(r.openings), totals: uint64(r.totals), records: uint64(r.records),
		befores: uint64(r.befores), marks: uint64(r.marks), flags: layoutFlags(g.Layout),
		rows: uint32(g.Capacity), align: uint32(g.Align), blocks: uint32(placing(g, h.blocks.dispatch)),
		mapEntries: uint32(entries),
	}
	config := cuda.LaunchConfig{
		Grid:  dispatch.Grid,
		Block: cuda.Dim{X: uint32(placeThreads(g, placing(g, h.blocks.dispatch)))}, Shared: placeBytes(entries),
	}
	if err := f.place.SetMaxDynamicShared(config.Shared); err != nil {
		return nil, err
	}
	k := &rowMap{}
	if k.launch, err = f.place.Prepare(config, a); err == nil {
		k.args, err = cuda.Arg[placeArgs](k.launch, 0)
	}
	return k, err
}

func (k *rowMap) point(group device.Group, at func(int64) uint64, locals *locals) {
	k.args.group, k.args.state = group, at(0)
	k.args.counts, k.args.bases = at(locals.counts), at(locals.bases)
}

// layoutFlags say how rows of a layout stand.
func layoutFlags(l spec.Layout) uint32 {
	switch l {
	case spec.ExpertPacked:
		return flagPacked
	case spec.TokenMajor:
		return flagRowPerToken
	default:
		return 0
	}
}

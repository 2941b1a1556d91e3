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
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// rowMapArgs are the arguments of a prepare: the RowMap of row_map.cuh.
type rowMapArgs struct {
	shape                                shape
	state                                uint64
	openings, totals, records            uint64
	shares, marks                        uint64
	flags, tokens, call, rows, align     uint32
	blocks, mapEntries, share            uint32
	ids, weights                         uint64
	home, destRows, recvRows, recvTokens uint64
	described, ranges                    uint64
	counts, bases                        uint64
	group                                device.Group
}

// rowMapForm is what a program of the kernel is compiled for: row_map.cuh has the constants.
type rowMapForm struct {
	tokenMajor bool // a token has one row at a rank
	// Top-k is a multiple of mapQuad, and a BitMap has a bucket for every column or, by token, every GPU's shared memory
	// has room for a TokenMap.
	even bool
}

func rowMapKernel(form rowMapForm, arch string) kernel.Spec {
	name := "row map"
	if form.tokenMajor {
		name += ", by rank"
	}
	if form.even {
		name += ", even"
	}
	s := kernelSpec(name, "direct_row_map.cu", arch, []string{directRowMap}, "direct.cuh",
		"row_map.cuh", "row_map_bitmap.cuh", "row_map_selections.cuh", "row_map_count.cuh", "row_map_arrived.cuh",
		"row_map_bases.cuh", "row_map_assign.cuh", "row_map_tokens.cuh")
	s.Defines["WEFT_ROW_MAP_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(rowMapArgs{})))
	s.Defines["WEFT_TOKEN_MAJOR"], s.Defines["WEFT_EVEN"] = number(form.tokenMajor), number(form.even)
	return s
}

// A prepare has mapBlocks blocks with something to do, if there are as many, or more if each would have more tokens
// than mapTokens, or token-major mapFewTokens. By expert counts pass from block to block. Token-major no block waits
// for another of its rank: more blocks only read more counts, 32 at a time and those of the next 32 meanwhile. Of
// mapFewTokens tokens with two quads of selections, half of the fewest threads have a quad each.
const mapBlocks, mapTokens, mapFewTokens = 32, 512, 64

// A block of a prepare by expert has two BitMaps of row_map_bitmap.cuh in shared memory, and behind them its bases
// (row_map_bases.cuh) if these are at most 4 * mapBuckets words. A map counts mapBuckets columns at a time. It
// has mapEntries entries, or fewMapEntries on a GPU with little shared memory. mapOwnBytes bounds what the
// kernel has of static shared memory.
const mapBuckets, mapEntries, fewMapEntries, mapOwnBytes = 1024, 9 << 10, 2 << 10, 1 << 10

func mapBytes(entries int) int { return entries*8 + mapBuckets*4 }

func mapSharedBytes(entries int) int { return 2*mapBytes(entries) + 4*mapBuckets*4 }

// tokenMapBytes is the size of a TokenMap of row_map_tokens.cuh, whose words have a bit for each token of the largest
// share.
func tokenMapBytes(ranks, experts, words int) int {
	return 4 * (4*ranks*words + 4*ranks + (experts+1)&^1)
}

// selectionBytes is SELECTION_BYTES of row_map.cuh.
const selectionBytes = 16

// selectionBits is how many bits say which selection of a block's tokens it is, and of which of the rank's experts:
// SelectionBits of row_map_tokens.cuh.
func selectionBits(tokens, topk, local int) int {
	return bits.Len(uint(tokens-1)) + bits.Len(uint(topk-1)) + bits.Len(uint(local))
}

// leastShared is the shared memory that a block has on every GPU, without asking for more.
const leastShared = 48 << 10

// A block of a prepare has two threads for every mapQuad selections of a token (QUAD of row_map_selections.cuh), within
// these bounds: the threads of a token are a power of two. Token-major it has a warp for each sum, for each rank's
// bits, and for each rank's routing (find_token_rows of row_map_tokens.cuh), so that none waits for counts twice.
const fewestMapThreads, mostMapThreads, mapQuad = 256, 768, 4

func mapThreads(g *spec.Geometry, blocks int) int {
	lanes := 1 << bits.Len(uint((g.TopK-1)/mapQuad))
	threads := spec.CeilDiv(spec.CeilDiv(g.Tokens, blocks)*lanes, 32) * 64
	if !g.Layout.ByExpert() {
		threads = max(threads, spec.CeilDiv(3*g.Ranks+spec.CeilDiv(g.Local, blocks), 2)*64)
	}
	return min(max(fewestMapThreads, threads), mostMapThreads)
}

// mapping is how many of so many blocks have something to do in a prepare.
func mapping(g *spec.Geometry, blocks int) int {
	most := mapTokens
	if !g.Layout.ByExpert() {
		most = mapFewTokens
	}
	return min(blocks, max(mapBlocks, spec.CeilDiv(g.Tokens, most)))
}

// rowMap computes the final row of every selection: the kernel of direct_row_map.cu. It prepares.
type rowMap struct {
	launcher[rowMapArgs]
	h *handle

	openings, totals, records, shares, marks int64 // offsets in the window
	counts, bases                            int64 // in this GPU's own memory
}

func (k *rowMap) load(p *programs) {
	p.add(rowMapKernel(rowMapFormOf(&k.h.Spec, k.h.Geometry.Ranks), p.arch), &k.functions[0])
}

// want implements [mover]: a row map has the grid of a dispatch, which goes by it.
func (k *rowMap) want() *request { return nil }

// blocks is how many of them have something to do.
func (k *rowMap) blocks() int { return mapping(&k.h.Geometry, k.h.grids[ofDispatch].moving) }

func (k *rowMap) layout(window, local *enginegpu.Workspace) {
	g, blocks := &k.h.Geometry, int64(k.h.grids[ofDispatch].moving)
	ranks, columns, width := int64(g.Ranks), int64(g.Experts+g.Ranks), g.Local // width: counts that a block sends a rank
	if !g.Layout.ByExpert() {
		columns, width = 0, g.Ranks+g.Local+k.words()+1
	}
	k.totals = window.Zeros(2 * ranks * (columns + 1) * 8)
	k.openings = window.Ones(3 * ranks * device.OpeningBytes)
	k.marks = window.Zeros(ranks * blocks * 4)
	if g.Layout.ByExpert() {
		k.records = window.Raw(2 * ranks * int64(g.Tokens) * int64(g.TopK) * int64(pairBytes))
	} else {
		k.records = window.Zeros(2 * ranks * int64(k.blocks()) * int64(k.share()) * int64(g.TopK) * selectionBytes)
	}
	k.shares = window.Zeros(2 * ranks * int64(k.blocks()*width) * 8)
	k.counts = local.Zeros(blocks * columns * 8)
	bases := 4 * max(g.Experts, g.Ranks) * 4
	if !g.Layout.ByExpert() {
		bases = tokenMapBytes(g.Ranks, g.Experts, k.words())
	}
	k.bases = local.Zeros(blocks * int64(bases))
}

// share is how many tokens a block has at most.
func (k *rowMap) share() int { return spec.CeilDiv(k.h.Geometry.Tokens, k.blocks()) }

// words are those that have a bit for each of them.
func (k *rowMap) words() int { return spec.CeilDiv(k.share(), 32) }

func (k *rowMap) prepare() error {
	h, g := k.h, &k.h.Geometry
	if size := h.window.Size(); size > spec.MostDirectBytes {
		return weft.Unsupportedf("%s: it would take %d GiB, and at most %d: lower MaxTokens or Live, or "+
			"give a Capacity", opNew, size>>30, spec.MostDirectBytes>>30)
	}
	if n := k.share(); !g.Layout.ByExpert() && selectionBits(n, g.TopK, g.Local) > 32 {
		return weft.Unsupportedf("%s: a block would have %d tokens, top-%d of %d experts a rank, which are too many to "+
			"number in 32 bits: give the handle more SMs, or its dispatches more blocks", opNew, n, g.TopK, g.Local)
	}
	shared, err := h.device.Context().Device().Attribute(cuda.SharedMemoryPerBlockOptIn)
	if err != nil {
		return err
	}
	entries, bytes := fewMapEntries, mapSharedBytes(fewMapEntries)
	if shared >= mapSharedBytes(mapEntries)+mapOwnBytes {
		entries, bytes = mapEntries, mapSharedBytes(mapEntries)
	}
	if !g.Layout.ByExpert() {
		if entries, bytes = 1, tokenMapBytes(g.Ranks, g.Experts, k.words()); shared < bytes+mapOwnBytes {
			entries, bytes = 0, 0
		}
	}
	config := h.config(h.grids[ofDispatch], false)
	config.Block.X, config.Shared = uint32(mapThreads(g, k.blocks())), bytes
	return k.layOut(config, rowMapArgs{
		shape: h.shape(), openings: uint64(k.openings), totals: uint64(k.totals), records: uint64(k.records),
		shares: uint64(k.shares), marks: uint64(k.marks), flags: layoutFlags(g.Layout),
		rows: uint32(g.Capacity), align: uint32(g.Align), blocks: uint32(k.blocks()), mapEntries: uint32(entries),
		share: uint32(k.share()),
	})
}

func (k *rowMap) point() {
	h := k.h
	k.pointed(func(a *rowMapArgs) {
		a.group, a.state = h.lane.Group(h.waits.dispatch), h.localAt(0)
		a.counts, a.bases = h.localAt(k.counts), h.localAt(k.bases)
	})
}

func (k *rowMap) route(ctx context.Context, stream *cuda.Stream, a spec.PrepareArgs) (*spec.Batch, error) {
	return k.start(ctx, spec.OpPrepare, tagPrepare, stream, a.TopK, a.Weights)
}

// start enqueues a prepare, and waits for its counts if the host wants them.
func (k *rowMap) start(ctx context.Context, op string, call uint32, stream *cuda.Stream, topk, weights weft.Tensor,
) (*spec.Batch, error) {
	h := k.h
	if h.Spec.Counts == spec.HostCounts && h.lane.Capture() != 0 {
		return nil, weft.Unsupportedf("%s: in a capture the host cannot learn how many rows come; make the "+
			"handle with DeviceCounts", op)
	}
	r, err := h.newBatch(stream, topk.Shape[0], !weights.IsZero())
	if err != nil {
		return nil, err
	}
	a, p, l := k.begin(), r.Info.(*gpuRouting), &h.routing
	a.home, a.destRows = p.at(l.home), p.at(l.destRows)
	a.recvRows, a.recvTokens = p.at(l.recvRows), p.at(l.recvTokens)
	a.described, a.ranges = p.at(l.described), p.at(l.ranges)
	a.ids, a.weights, a.tokens, a.call = addressOf(topk), addressOf(weights), uint32(r.Tokens), call
	if topk.DType == weft.Int64 {
		a.flags |= flagWideIDs
	}
	if err := h.lane.Start(stream, k.launches[0]); err != nil {
		r.Release()
		return nil, err
	}
	if err := cmp.Or(h.awaitCounts(ctx, r), p.overflow()); err != nil {
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

// rowMapFormOf is that of a handle.
func rowMapFormOf(s *spec.Spec, ranks int) rowMapForm {
	f := rowMapForm{tokenMajor: s.Layout == spec.TokenMajor, even: s.TopK%mapQuad == 0}
	if f.tokenMajor { // one block may have all tokens
		f.even = f.even && tokenMapBytes(ranks, s.Experts, spec.CeilDiv(s.MaxTokens, 32))+mapOwnBytes <= leastShared
	} else {
		f.even = f.even && s.Experts+ranks <= mapBuckets
	}
	return f
}

// rowMapPrograms are those of all handles.
func rowMapPrograms(arch string) (all []kernel.Spec) {
	for _, form := range []rowMapForm{{}, {even: true}, {tokenMajor: true}, {tokenMajor: true, even: true}} {
		all = append(all, rowMapKernel(form, arch))
	}
	return all
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

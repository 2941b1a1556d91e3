package ep

import (
	"encoding/binary"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// SetApart makes some blocks of every operation send and the others receive, however little there
// is, and gives what undoes it.
func SetApart() (undo func()) {
	rank, expert, combine := apartRankBytes, apartExpertCount, apartCombineBytes
	apartRankBytes, apartExpertCount, apartCombineBytes = 1, 1, 1
	return func() { apartRankBytes, apartExpertCount, apartCombineBytes = rank, expert, combine }
}

// SetBulk makes all rows that can be sent by bulk copies go so, however small they are, and gives
// what undoes it.
func SetBulk() (undo func()) {
	bytes := bulkRowBytes
	bulkRowBytes = 1
	return func() { bulkRowBytes = bytes }
}

// SetCombineRanks makes combines of sums use the kernels for so many ranks at least, and gives what
// undoes it.
func SetCombineRanks(ranks int) (undo func()) {
	before := combineRanks
	combineRanks = ranks
	return func() { combineRanks = before }
}

// CarriesOf is how a handle's dispatches and combines, by blocks of so many threads, move rows by
// bulk copies: bytes at a time and warps, or zeros.
func CarriesOf(s Spec, threads, ranks int) (push, pull [2]int) {
	s = s.normalize()
	p, c := s.pushCarry(threads), s.pullCarry(threads, s.pullRows(ranks))
	return [2]int{p.chunk, p.warps}, [2]int{c.chunk, c.warps}
}

// BulkBytes is how much shared memory they have for that.
const BulkBytes = bulkSharedBytes

// PullDepth is how many parts of tokens it has for each warp of a combine.
const PullDepth = pullDepth

// TableVersion is that of the tables that handles heed.
const TableVersion = tableVersion

// Announced is the set of places for received rows of which a handle's next operation would say
// that nobody reads them.
func Announced(h *Handle) uint32 { g := h.engine.(*gpu); return g.ring.Free(g.lane.Capture()) }

// gpuOf is a handle's engine, which is one on GPUs.
func gpuOf(h *Handle) *gpu {
	if g, ok := h.engine.(*gpu); ok {
		return g
	}
	return h.engine.(*placed).gpu
}

// Readable says whether others read a tensor where it is, rather than a copy.
func Readable(h *Handle, t weft.Tensor) bool {
	_, ok := gpuOf(h).readable(t)
	return ok
}

// ProgramsOf names the programs whose kernels move rows of the handles of a Spec: that of its
// dispatches first, and behind it that of calls that do everything at once.
func ProgramsOf(s Spec, ranks int) []string {
	s = s.normalize()
	t := tune(s, ranks)
	var all []string
	add := func(specs ...kernel.Spec) {
		for _, s := range specs {
			all = append(all, s.Name)
		}
	}
	if t.placed {
		add(pushKernel(s.Quantize, false, ""), pushKernel(s.Quantize, true, ""), placeKernel(s.placeForm(ranks), ""))
	} else {
		add(dispatchKernel(t.dispatchForm(s), ""), dispatchKernel(t.fusedDispatchForm(s, ranks), ""))
	}
	switch {
	case !s.combines():
	case t.pulls:
		add(pullKernel(s.pullForm(), ""))
	default:
		add(combineKernel(t.combineForm(s, ranks), ""), combineKernel(t.fusedCombineForm(s, ranks), ""))
	}
	if s.combines() {
		add(gradientKernel(s.Output, ""))
	}
	add(describeKernel(""), copyKernel(""))
	return all
}

// Leaders counts the rows that the tokens of a routing, which a prepare gave places, go as: one for
// each token and rank.
func Leaders(r *Routing, topk int) (n int, err error) {
	p := r.batch.info.(*gpuRouting)
	places := make([]byte, r.batch.tokens*topk*4)
	err = p.h.device.Context().Download(places, p.memory.Pointer().Add(p.off.places))
	for i := 0; i < len(places); i += 4 {
		n += int(binary.LittleEndian.Uint32(places[i:]) >> 31) // LEADER of kernels/placed.cuh
	}
	return n, err
}

// SetEpoch has a handle on GPUs count its operations from an epoch on, before the first.
func SetEpoch(h *Handle, epoch uint64) error {
	g := gpuOf(h)
	var counts []byte
	for range g.locals.gradientCounts + g.blocks.gradients {
		counts = binary.LittleEndian.AppendUint64(counts, epoch)
		counts = binary.LittleEndian.AppendUint64(counts, epoch%3)
	}
	c := g.device.Context()
	if err := c.Upload(g.lane.Local(device.StateBytes), counts); err != nil {
		return err
	}
	number := binary.LittleEndian.AppendUint32(nil, uint32(epoch))
	for at, size := range g.regions.Zeroed() {
		last := slices.Repeat(number, int(size)/4)
		if err := c.Upload(g.lane.Window().Pointer().Add(int(at)), last); err != nil {
			return err
		}
	}
	return c.Synchronize()
}

// SoilRoutings fills the memory of routings that nobody has as memory may be that was just
// allocated.
func SoilRoutings(h *Handle) error {
	g := gpuOf(h)
	for _, r := range g.idle {
		if err := g.device.Context().Upload(r.memory.Pointer(),
			slices.Repeat([]byte{0x5A, 0, 0x5A, 0}, r.off.total/4)); err != nil {
			return err
		}
	}
	return g.device.Context().Synchronize()
}

// Grids are how many blocks of how many threads a handle's dispatches, combines and gradients have.
func Grids(h *Handle) (blocks, threads [3]int) {
	g := h.engine.(*gpu)
	return [3]int{g.blocks.dispatchGrid(), g.blocks.combineGrid(), g.blocks.gradients},
		[3]int{g.tuning.dispatchThreads, g.tuning.combineThreads, g.blocks.gradientThreads}
}

// GraphedRoutings is how many of the Routings that nobody has are written by graphs.
func GraphedRoutings(h *Handle) int { return len(gpuOf(h).graphed) }

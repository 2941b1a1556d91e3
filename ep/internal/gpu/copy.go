package gpu

import (
	"cmp"
	"context"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// copyArgs are the arguments of a copy of what has arrived: the Copy of copy.cu.
type copyArgs struct {
	described            describeArgs
	zones, zoneRows      uint32
	counts               uint64
	pieces, shares       device.Divisor
	rowBytes, scaleWords uint32
	rows, toRows         uint64
	scales, toScales     uint64
	from, to             spec.Strides
	gaps, local          uint32
	kept, padded         uint64
	offsets              uint64
	lists                [3]list
}

// list is so many words that are copied as they are: the List of copy.cu.
type list struct {
	from, to uint64
	n, _     uint32
}

// A block of a copy has copyThreads. A warp moves copyPiece bytes of a row at a time, or copyShare
// words of the scales of 32 rows.
const (
	copyThreads = 512
	copyPiece   = 4 * spec.UnitBytes
	copyShare   = 8
)

func copyKernel(arch string) kernel.Spec {
	s := kernelSpec("copy", "copy.cu", arch, []string{"weft::ep::copy"}, "describe.cuh")
	s.Defines["WEFT_COPY_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(copyArgs{})))
	return s
}

// copyBlocks is how many blocks a copy has, one for each SM that the handle may fill, if they have
// something to do.
func (h *gpu) copyBlocks(sms int) int {
	pieces := h.Geometry.Rows() * spec.CeilDiv(h.Spec.RowSize(), copyPiece)
	return max(1, min(sms, spec.CeilDiv(pieces, copyThreads/32)))
}

// prepareCopies lays out the launch.
func (h *gpu) prepareCopies(f functions, config cuda.LaunchConfig) (err error) {
	g, s := &h.Geometry, &h.Spec
	a := copyArgs{
		described: *h.describeArg, zones: 1, rowBytes: uint32(s.RowSize()),
		scaleWords: uint32(s.ScaleSize() / 4),
	}
	switch s.Layout {
	case spec.ExpertMajor:
		a.zones = uint32(g.Local)
	case spec.RankMajor:
		a.zones, a.gaps = uint32(g.Ranks), 1
	}
	if h.copying, err = f.copy.Prepare(config, a); err != nil {
		return err
	}
	h.copyArg, err = cuda.Arg[copyArgs](h.copying, 0)
	return err
}

// zonesOf is how many of so many places a zone has, and where on the GPU it stands how many rows
// each has.
func (h *gpu) zonesOf(r *spec.Batch, places int) (rows uint32, counts uint64) {
	rows = uint32(places) / h.copyArg.zones
	p := r.Info.(*gpuRouting)
	switch h.Geometry.Layout {
	case spec.ExpertMajor:
		return rows, addressOf(p.Tensor(spec.ExpertCounts))
	case spec.RankMajor:
		return rows, p.sent()
	default:
		return rows, p.at(p.off.described + 4*(2*h.Geometry.Local+2*h.Geometry.Ranks)) // rows
	}
}

func (h *gpu) Copy(ctx context.Context, s *weft.Stream, r spec.CopyArgs) error {
	to := &r.To
	err := cmp.Or(
		aligned(spec.OpCopy, "rows", to.Data), words(spec.OpCopy, "scales", to.Scales),
		whole(spec.OpCopy, "source tokens", to.SourceTokens), whole(spec.OpCopy, "source ranks", to.SourceRanks),
		whole(spec.OpCopy, "row weights", to.RowWeights),
		whole(spec.OpCopy, "row experts", to.RowExperts), whole(spec.OpCopy, "row selection weights", to.RowSelectionWeights),
		whole(spec.OpCopy, "expert counts", to.ExpertCounts), whole(spec.OpCopy, "ranges", to.Ranges),
		whole(spec.OpCopy, "source counts", to.SourceCounts),
	)
	if err != nil {
		return err
	}
	stream := h.lane.Stream(s)
	if err := h.lane.Note(stream); err != nil {
		return err
	}
	if h.lane.Capture() != 0 && addressOf(r.Data) != uint64(h.placeOf(r.Buffer)) {
		return weft.Unsupportedf("%s: the rows were received before ranks were masked, and a graph may "+
			"outlive their memory; copy them outside of the capture", spec.OpCopy)
	}
	h.setCopy(&r)
	if err := h.copying.Start(stream); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

// setCopy points the launch at what was received, and at where it is to be.
func (h *gpu) setCopy(r *spec.CopyArgs) {
	g, p, a, to := &h.Geometry, r.Batch.Info.(*gpuRouting), h.copyArg, &r.To
	a.zoneRows, a.counts = h.zonesOf(r.Batch, r.Places())
	a.pieces, a.shares = device.Divisor{}, device.Divisor{}
	if !to.Data.IsZero() {
		a.pieces = device.NewDivisor(spec.CeilDiv(h.Spec.RowSize(), copyPiece))
		a.rows, a.toRows = addressOf(r.Data), addressOf(to.Data)
	}
	if !to.Scales.IsZero() {
		a.shares = device.NewDivisor(spec.CeilDiv(h.Spec.ScaleSize()/4, copyShare))
		a.scales, a.toScales = addressOf(r.Scales), addressOf(to.Scales)
		a.from, a.to = h.ScaleStridesOf(r.Scales, h.Spec.ScaleOrder), h.ScaleStridesOf(to.Scales, to.ScaleOrder)
	}
	a.lists = [3]list{}
	for i, l := range [...]struct{ from, to weft.Tensor }{
		{p.Tensor(spec.ExpertCounts), to.ExpertCounts},
		{p.Tensor(spec.Ranges), to.Ranges},
		{p.Tensor(spec.SourceCounts), to.SourceCounts},
	} {
		if !l.to.IsZero() {
			a.lists[i] = list{from: addressOf(l.from), to: addressOf(l.to), n: uint32(l.to.Bytes() / 4)}
		}
	}
	d := &a.described
	h.pointDescription(d, p)
	d.tokens, d.sources, d.weights = addressOf(to.SourceTokens), addressOf(to.SourceRanks), addressOf(to.RowWeights)
	d.experts, d.expertWeights = addressOf(to.RowExperts), addressOf(to.RowSelectionWeights)
	d.ranks, a.local = 0, 0
	if d.tokens|d.sources|d.weights|d.experts|d.expertWeights != 0 {
		d.ranks = uint32(g.Ranks)
		if g.Layout == spec.ExpertPacked && g.Align > 1 {
			a.local = uint32(g.Local)
			a.kept, a.padded = addressOf(p.Tensor(spec.ExpertCounts)), addressOf(p.Tensor(spec.PaddedCounts))
			a.offsets = addressOf(p.Tensor(spec.ExpertOffsets))
		}
	}
}

// words refuses what does not begin on a word.
func words(op, what string, t weft.Tensor) error {
	if addressOf(t)%4 != 0 {
		return weft.Unsupportedf("%s: %s begin at %#x; on GPUs they begin on multiples of 4 bytes: copy "+
			"them there", op, what, addressOf(t))
	}
	return nil
}

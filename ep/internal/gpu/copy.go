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

// copier copies what has arrived: the kernel of copy.cu.
type copier struct {
	apart
	launcher[copyArgs]
	h *handle
}

func (c *copier) load(p *programs) { p.add(copyKernel(p.arch), &c.functions[0]) }

// prepare implements [mover]. A copy has a block for each SM that the handle may fill, if all have
// something to do.
func (c *copier) prepare() error {
	room, s := c.h.room, &c.h.Spec
	a := c.args(s.RowSize())
	a.scaleWords = uint32(s.ScaleSize() / 4)
	config := c.config(s.RowSize(), spec.CeilDiv(room.Blocks, room.PerSM), c.h.choice.DependentDispatch)
	return c.layOut(config, a)
}

// stages lays out the copy of a combine's rows into the window, of which the host knows only the
// most that there can be: tensors have room for those. Like a copy of the driver's it may use all
// SMs.
func (c *copier) stages(l *launcher[copyArgs]) error {
	size := c.h.Spec.OutputSize()
	a := c.args(size)
	a.pieces = device.NewDivisor(spec.CeilDiv(size, copyPiece))
	a.gaps, a.described.ranks = 0, 0 // nothing is to be described
	l.functions = c.functions
	return l.layOut(c.config(size, c.h.device.SMs(), false), a)
}

// args are what a copy of rows of so many bytes begins with.
func (c *copier) args(rowBytes int) copyArgs {
	a := copyArgs{described: moverOf[*describe](c.h).args(), zones: 1, rowBytes: uint32(rowBytes)}
	switch g := &c.h.Geometry; g.Layout {
	case spec.ExpertMajor:
		a.zones = uint32(g.Local)
	case spec.RankMajor:
		a.zones, a.gaps = uint32(g.Ranks), 1
	}
	return a
}

// config is the launch of a copy of rows of so many bytes on so many SMs.
func (c *copier) config(rowBytes, sms int, dependent bool) cuda.LaunchConfig {
	pieces := c.h.Geometry.Rows() * spec.CeilDiv(rowBytes, copyPiece)
	blocks := max(1, min(sms, spec.CeilDiv(pieces, copyThreads/32)))
	return c.h.config(grid{moving: blocks, threads: copyThreads}, dependent)
}

// zonesOf is how many of so many rows a zone has room for, and the address of how many rows each has.
func (c *copier) zonesOf(r *spec.Batch, capacity int) (rows uint32, counts uint64) {
	rows = uint32(capacity) / c.fixed.zones
	p := r.Info.(*gpuRouting)
	switch g := &c.h.Geometry; g.Layout {
	case spec.ExpertMajor:
		return rows, addressOf(p.Tensor(spec.ExpertCounts))
	case spec.RankMajor:
		return rows, p.sent()
	default:
		return rows, p.at(c.h.routing.described + 4*(2*g.Local+2*g.Ranks)) // rows
	}
}

func (h *handle) Copy(ctx context.Context, s *weft.Stream, r spec.CopyArgs) error {
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
	if h.lane.Capture() != 0 && addressOf(r.Data) != uint64(h.bufferOf(r.Buffer)) {
		return weft.Unsupportedf("%s: the rows were received before ranks were masked, and a graph may "+
			"outlive their memory; copy them outside of the capture", spec.OpCopy)
	}
	c := moverOf[*copier](h)
	c.call(&r)
	if err := c.launches[0].Start(stream); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

// call begins a copy of what was received to where it is to be.
func (c *copier) call(r *spec.CopyArgs) {
	h, g, p, a, to := c.h, &c.h.Geometry, r.Batch.Info.(*gpuRouting), c.begin(), &r.To
	rows := r.Rows()
	a.zoneRows, a.counts = c.zonesOf(r.Batch, rows)
	if !to.Data.IsZero() {
		a.pieces = device.NewDivisor(spec.CeilDiv(h.Spec.RowSize(), copyPiece))
		a.rows, a.toRows = addressOf(r.Data), addressOf(to.Data)
	}
	if !to.Scales.IsZero() {
		a.shares = device.NewDivisor(spec.CeilDiv(h.Spec.ScaleSize()/4, copyShare))
		a.scales, a.toScales = addressOf(r.Scales), addressOf(to.Scales)
		a.from, a.to = h.ScaleStridesOf(r.Scales, h.Spec.ScaleOrder), h.ScaleStridesOf(to.Scales, to.ScaleOrder)
	}
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
	d.point(p)
	d.tokens, d.sources, d.weights = addressOf(to.SourceTokens), addressOf(to.SourceRanks), addressOf(to.RowWeights)
	d.experts, d.wide, d.expertWeights = addressOf(to.RowExperts), 0, addressOf(to.RowSelectionWeights)
	if to.RowExperts.DType == weft.Int64 {
		d.experts, d.wide = 0, d.experts
	}
	d.ranks, d.rows, a.local = 0, uint32(rows), 0
	if d.tokens|d.sources|d.weights|d.experts|d.wide|d.expertWeights != 0 {
		d.ranks = uint32(g.Ranks)
		if g.Layout == spec.ExpertPacked && g.Align > 1 {
			a.local = uint32(g.Local)
			a.kept, a.padded = addressOf(p.Tensor(spec.ExpertCounts)), addressOf(p.Tensor(spec.PaddedCounts))
			a.offsets = addressOf(p.Tensor(spec.ExpertOffsets))
		}
	}
}

func copyPrograms(arch string) []kernel.Spec { return []kernel.Spec{copyKernel(arch)} }

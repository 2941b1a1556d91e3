package gpu

import (
	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// placed is the engine of handles on GPUs whose rows have their final places before they leave: the
// packed layouts, and all whose capacity can overflow. Prepare, which is direct_row_map.cu, gives
// every row its place; Dispatch, direct_push.cu, stores it there; its token's home reads it from
// there in Combine, direct_pull.cu. Where a rank first sums the rows that it has of a token,
// Combine is that of the other handles.
type placed struct{ *gpu }

func placedKernels(arch string) []kernel.Spec {
	var all []kernel.Spec
	for _, form := range []placeForm{{}, {even: true}, {byRank: true}, {byRank: true, even: true}} {
		all = append(all, placeKernel(form, arch))
	}
	for _, from := range []weft.DType{weft.InvalidDType, weft.BFloat16, weft.Float16, weft.Float32} {
		all = append(all, pushKernel(from, false, arch), pushKernel(from, true, arch))
	}
	for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
		for _, order := range []string{"RANKS", "SELECTIONS", "EXACT"} {
			all = append(all, pullKernel(pullForm{order, of}, arch))
		}
	}
	return all
}

// newPlacedRegions lays out the window of a handle whose rows have their final places before they
// leave: what direct.cuh describes.
func newPlacedRegions(g *spec.Geometry, s spec.Spec, t spec.Choice, b blocks) regions {
	ranks, tokens := int64(g.Ranks), int64(g.Tokens)
	r := regions{inWindow: true, block: spec.NewBlockShape(s, g.Rows())}
	r.totals = r.Zeros(2 * ranks * int64(g.Experts+g.Ranks+1) * 8)
	r.openings = r.Ones(2 * 3 * ranks * device.OpeningBytes)
	r.marks = r.Zeros(ranks * int64(b.dispatch+b.combine) * 4)
	r.addGradients(g, s, b.gradients)
	r.records = r.Raw(2 * ranks * tokens * int64(g.TopK) * int64(pairBytes))
	if t.Pulls {
		r.stage = r.Raw(int64(g.Rows()) * int64(s.OutputSize()))
		r.pullScalars = r.Raw(2 * tokens * int64(g.TopK) * 4)
	} else {
		r.addCombine(g, s, t, b.combine)
	}
	columns := 1 // that a rank is told of, of what the blocks before one have
	if s.Layout.ByExpert() {
		columns = g.Local
	}
	r.befores = r.Zeros(2 * ranks * int64(placing(g, b.dispatch)*columns) * 8)
	r.blocks = r.Raw(int64(s.Live) * r.block.Bytes)
	return r
}

// directKernels are the kernels of a handle whose rows have their final places before they leave. A
// handle whose ranks sum first has no pull.
type directKernels struct {
	rowMap *rowMap
	push   *push
	pull   *pull
}

// prepareDirect lays out the launches.
func (h *gpu) prepareDirect(f functions, dispatch, combine cuda.LaunchConfig) (err error) {
	h.direct = &directKernels{}
	if h.direct.rowMap, err = h.newRowMap(f, dispatch); err != nil {
		return err
	}
	if h.direct.push, err = h.newPush(f, dispatch); err != nil || !h.tuning.Pulls {
		return err
	}
	h.direct.pull, err = h.newPull(f, combine, uint64(dispatch.Grid.X))
	return err
}

// point points the launches at the handle's memory.
func (d *directKernels) point(dispatch, combine device.Group, at func(int64) uint64, locals *locals) {
	d.rowMap.point(dispatch, at, locals)
	d.push.point(dispatch, at)
	if d.pull != nil {
		d.pull.point(combine, at)
	}
}

// bulk says whether the GPU has bulk copies, and the shared memory for them.
func (h *gpu) bulk() (bool, error) {
	d := h.device.Context().Device()
	major, _, err := d.ComputeCapability()
	if err != nil || major < 9 {
		return false, err
	}
	shared, err := d.Attribute(cuda.SharedMemoryPerBlockOptIn)
	return shared >= spec.BulkSharedBytes+spec.BulkOwnBytes, err
}

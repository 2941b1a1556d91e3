package spec

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
)

// Base is the state that a handle and its engine share.
type Base struct {
	Comm     *weft.Comm
	Spec     Spec // normalized
	Geometry Geometry
	Buffers  *engine.Buffers // of received rows
	Gate     *weft.Gate      // of the handle's calls
}

// NewBase makes the base of a handle for a Spec that is valid.
func NewBase(comm *weft.Comm, s Spec) *Base {
	s = s.Normalize()
	return &Base{
		Comm: comm, Spec: s, Geometry: NewGeometry(s, comm.Size()),
		Buffers: engine.NewBuffers(s.Live), Gate: comm.Operations().Gate("handle"),
	}
}

// Batch is the part of a Routing that a handle and its engine share. An engine makes it in Prepare.
type Batch struct {
	Base    *Base // nil once it was released
	Info    Info
	Tokens  int           // of this rank
	Masked  *weft.RankSet // ranks that were masked when it was prepared; not to be changed
	Weights WeightState
	Epoch   uint64 // of its Prepare: the same on every rank
}

// Info is an engine's routing metadata of a [Batch]. Its methods are those of ep.Routing, and may be
// called until the batch is released.
type Info interface {
	Traffic() Traffic
	Rows() int
	Received() int
	// RowsKnown is the number of rows that have arrived, as far as the host knows it without a wait: or 0.
	RowsKnown() int
	Demand() int
	// Tensor returns a part of the routing metadata.
	Tensor(part Part) weft.Tensor
	// Free gives the memory back. It is called once.
	Free()
}

// Part names a tensor of routing metadata: the method of ep.Routing that returns it.
type Part uint8

const (
	RowDemand Part = iota
	ExpertCounts
	ExpertDemand
	PaddedCounts
	ExpertOffsets
	SourceCounts
	Ranges // of layouts by expert, as are SourceSelections and RowWeights
	SourceTokens
	SourceRanks
	SourceSelections
	RowWeights
	RowExperts // of layouts with one row per rank, as are RowSelectionWeights
	RowSelectionWeights
)

// WeightState says where a [Batch] has weights.
type WeightState uint8

const (
	NoWeights WeightState = iota
	WeightsAtHome
	WeightsEverywhere
)

// WeightsIf is the state after a Prepare that was given weights, or was not.
func WeightsIf(given bool) WeightState {
	if given {
		return WeightsEverywhere
	}
	return NoWeights
}

// Release gives the batch's memory back. Further calls do nothing.
func (b *Batch) Release() {
	if b.Base != nil {
		b.Base = nil
		b.Info.Free()
	}
}

// Check refuses a nil batch, a batch of another handle, and one that was prepared while ranks were
// masked that take part now.
func (b *Batch) Check(of *Base, op string) error {
	if b == nil || b.Base != of {
		return weft.Invalidf("%s: the routing was not prepared by this handle", op)
	}
	if now := of.Comm.Operations().MaskPointer(); now != b.Masked && !now.Contains(*b.Masked) {
		return fmt.Errorf("%s: %w: the routing was prepared while ranks were masked that now take part; "+
			"prepare again", op, weft.ErrInvalid)
	}
	return nil
}

// CheckWeighted refuses a batch whose weights the operation needs and the batch lacks.
func (b *Batch) CheckWeighted(op string, least WeightState) error {
	switch {
	case b.Base.Spec.Weighting != Weighted || b.Weights >= least:
		return nil
	case b.Weights == WeightsAtHome:
		return weft.Invalidf("%s: the routing's weights were set on this rank, which sends them to no other; "+
			"dispatch with weights", op)
	default:
		return weft.Invalidf("%s: the routing has no weights; give them where it is prepared, or to a dispatch", op)
	}
}

// Fewest is the least number of rows of a tensor from which an operation reads the batch's rows.
func (b *Batch) Fewest() int {
	if s := &b.Base.Spec; s.Layout.Packed() && s.Counts == DeviceCounts {
		return b.Info.RowsKnown()
	}
	return b.Info.Rows()
}

// Arrived is the receive buffer that a dispatch has filled.
type Arrived struct {
	Batch      *Batch
	Buffer     int // its number, for Engine.Put
	Memory     unsafe.Pointer
	Shape      BlockShape
	Generation uint32 // of the buffer's content
}

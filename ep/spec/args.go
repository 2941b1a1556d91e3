package spec

import "github.com/weftgo/weft"

// PrepareArgs are the operands of a prepare.
type PrepareArgs struct{ TopK, Weights weft.Tensor }

// MoveArgs are the operands of a dispatch. The rows go by Batch or, with TopK, by a batch that the
// dispatch prepares.
type MoveArgs struct {
	Batch         *Batch
	TopK, Weights weft.Tensor
	Data, Scales  weft.Tensor
}

// Prepares reports whether the dispatch prepares its batch.
func (a *MoveArgs) Prepares() bool { return !a.TopK.IsZero() }

// Check refuses a dispatch that has not exactly one of a batch and topk, or another
// handle's batch.
func (a *MoveArgs) Check(of *Base, op string) error {
	switch {
	case !a.Prepares() && a.Batch == nil:
		return weft.Invalidf("%s: neither a routing nor topk is given; give one of the two", op)
	case !a.Prepares():
		return a.Batch.Check(of, op)
	case a.Batch != nil:
		return weft.Invalidf("%s: a routing and topk are given; give one of the two", op)
	default:
		return nil
	}
}

// BringsWeights reports whether weights travel with the rows of an existing batch.
func (a *MoveArgs) BringsWeights() bool { return !a.Prepares() && !a.Weights.IsZero() }

// MostBiases is the most biases that a combine adds.
const MostBiases = 2

// SumArgs are the operands of a combine, or of a dispatch backward.
type SumArgs struct {
	Batch     *Batch
	Rows, Out weft.Tensor
	Weights   weft.Tensor // optional: they replace the batch's, in a combine
	Bias      [MostBiases]weft.Tensor
	Biases    int // as the caller gave them: more than MostBiases are refused
	// Optional, in a dispatch backward: the gradients of weights, by row and by selection.
	Scalars, OutScalars weft.Tensor
}

// SpreadArgs are the operands of a combine backward.
type SpreadArgs struct {
	Batch                 *Batch
	GradOut               weft.Tensor
	Rows                  weft.Tensor // optional: the combined rows, for the gradients of weights
	GradRows, GradWeights weft.Tensor
}

// CopyArgs are a received batch and the destinations of its copy.
type CopyArgs struct {
	Batch        *Batch
	Buffer       int
	Data, Scales weft.Tensor // of the received batch
	To           Copies
}

// Zone is the number of rows that a zone of the received tensor has room for.
func (a *CopyArgs) Zone() int { return a.Data.Shape[len(a.Data.Shape)-2] }

// Rows is the number of rows that the received tensor and all destinations have room for.
func (a *CopyArgs) Rows() int {
	rows, to := a.Capacity(), &a.To
	if !a.Batch.Base.Spec.Layout.Packed() {
		return rows
	}
	for _, t := range [...]*weft.Tensor{
		&to.Data, &to.SourceTokens, &to.SourceRanks, &to.RowWeights, &to.RowExperts, &to.RowSelectionWeights,
	} {
		if !t.IsZero() {
			rows = min(rows, t.Shape[0])
		}
	}
	if s := &to.Scales; !s.IsZero() {
		of := s.Shape[0]
		if to.ScaleOrder == ColumnMajorScales {
			of = s.Shape[1]
		}
		rows = min(rows, of)
	}
	return rows
}

// Capacity is the number of rows that all zones have room for.
func (a *CopyArgs) Capacity() int {
	b := a.Batch.Base
	if b.Spec.Layout == ExpertMajor {
		return b.Geometry.Local * a.Zone()
	}
	return a.Zone()
}

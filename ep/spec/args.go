package spec

import "github.com/weftgo/weft"

// PrepareArgs are what an engine prepares from.
type PrepareArgs struct{ TopK, Weights weft.Tensor }

// MoveArgs are what an engine dispatches: rows that go by a Batch or, with TopK, by one that is
// prepared on the way.
type MoveArgs struct {
	Batch         *Batch
	TopK, Weights weft.Tensor
	Data, Scales  weft.Tensor
}

// Prepares reports whether the batch is prepared on the way.
func (a *MoveArgs) Prepares() bool { return !a.TopK.IsZero() }

// Check says what is wrong with how a dispatch of a handle is to find where rows go.
func (a *MoveArgs) Check(of *Base, op string) error {
	switch {
	case !a.Prepares() && a.Batch == nil:
		return weft.Invalidf("%s: neither a routing nor top-k experts are given; give one of the two", op)
	case !a.Prepares():
		return a.Batch.Check(of, op)
	case a.Batch != nil:
		return weft.Invalidf("%s: a routing and top-k experts are given; give one of the two", op)
	default:
		return nil
	}
}

// Weighs reports whether weights travel with the rows of a batch that is there.
func (a *MoveArgs) Weighs() bool { return !a.Prepares() && !a.Weights.IsZero() }

// MostBiases is how many biases a combine adds at most.
const MostBiases = 2

// SumArgs are what an engine combines, or takes home as the gradient of a dispatch.
type SumArgs struct {
	Batch     *Batch
	Rows, Out weft.Tensor
	Weights   weft.Tensor // of a combine's own; or none
	Bias      [MostBiases]weft.Tensor
	Biases    int // given, which may be too many
	// Of the gradient of a dispatch: a number for each row that goes home, and where to; or none.
	Scalars, OutScalars weft.Tensor
}

// SpreadArgs are the gradient of a combine.
type SpreadArgs struct {
	Batch                 *Batch
	GradOut               weft.Tensor
	Rows                  weft.Tensor // as they were combined, for the gradients of weights; or none
	GradRows, GradWeights weft.Tensor
}

// CopyArgs are received rows, and where they are to be copied.
type CopyArgs struct {
	Batch        *Batch
	Buffer       int
	Data, Scales weft.Tensor // as they were received
	To           Copies
}

// Zone is how many rows have room in a zone of the received tensor.
func (a *CopyArgs) Zone() int { return a.Data.Shape[len(a.Data.Shape)-2] }

// Places is how many rows have room in all zones.
func (a *CopyArgs) Places() int {
	b := a.Batch.Base
	if b.Spec.Layout == ExpertMajor {
		return b.Geometry.Local * a.Zone()
	}
	return a.Zone()
}

package spec

import (
	"context"

	"github.com/weftgo/weft"
)

// Engine says what moves the rows of a handle.
type Engine uint8

const (
	// HostEngine moves rows in host memory: that of communicators bound to no device.
	HostEngine Engine = iota
	// GPUEngine moves rows between GPUs: that of communicators whose ranks are bound to one each.
	GPUEngine
	engines
)

var engineNames = [engines]string{"host", "gpu"}

func (e Engine) String() string { return name(engineNames[:], e) }

// EngineOf is the engine of a communicator's handles.
func EngineOf(comm *weft.Comm) Engine {
	if comm.Device() != nil {
		return GPUEngine
	}
	return HostEngine
}

// RowEngine moves the rows of one handle. An engine checks the arguments by the methods of [Base],
// for how a refusal reaches the other ranks is its affair.
type RowEngine interface {
	Prepare(ctx context.Context, s *weft.Stream, a PrepareArgs) (*Batch, error)
	Dispatch(ctx context.Context, s *weft.Stream, a MoveArgs) (Arrived, error)
	SendDispatch(ctx context.Context, s *weft.Stream, a MoveArgs) (SecondHalf, error)
	// Combine, if it is given weights, is given them as they should be. What it refuses leaves the
	// batch as it was.
	Combine(ctx context.Context, s *weft.Stream, a SumArgs) error
	SendCombine(ctx context.Context, s *weft.Stream, a SumArgs) (*weft.Work, error)
	DispatchBackward(ctx context.Context, s *weft.Stream, a SumArgs) error
	CombineBackward(ctx context.Context, s *weft.Stream, a SpreadArgs) error
	// SetWeights and Copy are given arguments that are as they should be.
	SetWeights(ctx context.Context, s *weft.Stream, b *Batch, weights weft.Tensor) error
	Copy(ctx context.Context, s *weft.Stream, a CopyArgs) error
	// CountWaits is given tensors that are as they should be.
	CountWaits(dispatch, combine weft.Tensor)
	// OperandBuffers are the handle's memory for rows that are combined and for gradients of the
	// output, or none.
	OperandBuffers() (combine, gradient weft.Tensor)
	// Put gives a buffer of received rows back: from any goroutine, also after Close.
	Put(buffer int)
	Resources() Resources
	// Close is called until it has released what the engine holds.
	Close() (released bool, err error)
}

// HostRowEngine is the engine of a handle on the host, with what the hosts' part of operations between GPUs needs.
type HostRowEngine interface {
	RowEngine
	// OnStep has a function called whenever this rank gets on in an operation; nil: none.
	OnStep(step func())
	// Extents are the rows of a batch that exist, pads included, ascending.
	Extents(b *Batch) []Extent
	// Shipped is how many bytes of rows and numbers this rank has sent to other hosts.
	Shipped() uint64
}

// Extent is rows that follow each other in a zone. Layouts that are not expert-major have one zone.
type Extent struct{ Zone, First, Rows int }

// Resources are what an engine has: memory, and on GPUs multiprocessors that the kernels of its
// operations fill if nothing else runs.
type Resources struct{ Bytes, DispatchSMs, CombineSMs, GradientSMs int }

// SecondHalf is what remains to be done of a dispatch that was sent. Receive is called once. If it
// fails nothing was received, and nothing is held.
type SecondHalf interface {
	Receive(ctx context.Context) (Arrived, error)
}

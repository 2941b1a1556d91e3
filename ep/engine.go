package ep

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

// engineOf is the engine of a communicator's handles.
func engineOf(comm *weft.Comm) Engine {
	if comm.Device() != nil {
		return GPUEngine
	}
	return HostEngine
}

// rowEngine moves the rows of one handle. Its methods are those of [Handle] by the same names,
// which say what they mean; the engine checks the arguments, for how a refusal reaches the other
// ranks is its affair.
type rowEngine interface {
	prepare(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor) (*Routing, error)
	dispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*Received, error)
	sendDispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*PendingDispatch, error)
	prepareDispatch(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor, x Rows) (*Received, error)
	sendPrepareDispatch(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor, x Rows) (*PendingDispatch, error)
	// Combines are given weights of their own, which are as they should be, or none. What they
	// refuse leaves the Routing as it was.
	combine(ctx context.Context, s *weft.Stream, r *Routing, weights, y, out weft.Tensor, bias []weft.Tensor) error
	sendCombine(ctx context.Context, s *weft.Stream, r *Routing, weights, y, out weft.Tensor,
		bias []weft.Tensor) (*weft.Work, error)
	dispatchBackward(ctx context.Context, s *weft.Stream, r *Routing, gradRows, gradRowWeights, gradX,
		gradWeights weft.Tensor) error
	combineBackward(ctx context.Context, s *weft.Stream, r *Routing, gradOut, y, gradRows, gradWeights weft.Tensor) error
	// arguments that are as they should be
	weigh(ctx context.Context, s *weft.Stream, r *Routing, weights weft.Tensor) error
	// arguments that are as they should be
	copyReceived(ctx context.Context, s *weft.Stream, r *Received, to *Copies) error
	combineBuffer() weft.Tensor
	gradientBuffer() weft.Tensor
	countWaits(dispatch, combine weft.Tensor) // of tensors that are as they should be
	memoryBytes() int
	sms() (dispatch, combine, gradients int)
	close() (released bool, err error) // called until it has released what the engine holds
}

// placement is what an engine knows of a [Routing]: where rows go and which come. Its methods are
// those of Routing, and may be called while the Routing is its handle's, but for release.
type placement interface {
	Traffic() Traffic
	Rows() int
	Received() int
	told() int // rows that have come, as far as the host knows without a wait, or 0
	Demand() int
	RowDemand() weft.Tensor
	ExpertCounts() weft.Tensor
	ExpertDemand() weft.Tensor
	PaddedCounts() weft.Tensor
	ExpertOffsets() weft.Tensor
	SourceCounts() weft.Tensor
	Ranges() weft.Tensor
	SourceTokens() weft.Tensor
	SourceRanks() weft.Tensor
	SourceSelections() weft.Tensor
	RowWeights() weft.Tensor
	RowSelections() (experts, weights weft.Tensor)
	release() // called once
}

// owner is whose memory a [Received] lies in.
type owner interface {
	put(place int) // takes the place back; from any goroutine, also after the handle was closed
}

// secondHalf is what remains to be done for a [PendingDispatch], which calls it once. If it fails
// nothing was received, and nothing is held.
type secondHalf interface {
	receive(ctx context.Context) (*Received, error)
}

// newEngine makes the engine of a handle whose communicator, Spec and geometry are set. It is
// collective.
func newEngine(ctx context.Context, h *Handle) (rowEngine, error) {
	if engineOf(h.comm) == GPUEngine {
		return newGPU(ctx, h)
	}
	return newHost(ctx, h)
}

package ep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// DeviceCensus is where a [Counter] puts what a [Census] says: tensors of the caller's in the
// memory of its GPU. A tensor that is absent is not wanted; at least one is. They need no value
// before, must not overlap each other or the selections, and are borrowed until the stream has
// passed the call.
type DeviceCensus struct {
	RankTokens       weft.Tensor // int32 [ranks]
	NodeTokens       weft.Tensor // int32 [ranks / ranksPerNode]
	ExpertSelections weft.Tensor // int32 [experts]
	TokenInRank      weft.Tensor // uint8 [tokens, ranks]: 1 if the token goes to the rank, else 0, as a bool has it
}

// Counter is [CountRouting] on the GPU that a rank is bound to, for callers that want to know
// before they have a handle, or without one. It is local: no other rank takes part, and ranks may
// have Counters for whatever numbers of experts and ranks. It has no memory on the GPU but its
// code.
//
// Its methods are called from one goroutine at a time. What they have enqueued may run in several
// streams at once.
type Counter struct {
	comm             *weft.Comm
	experts          int
	ranks, perNode   int
	program          *enginegpu.Program
	launch           enginegpu.Launch[censusArgs]
	closed, unloaded bool
}

// censusArgs are the arguments of a census: the Census of kernels/census.cu.
type censusArgs struct {
	shape                         shape
	tokens, ranks, nodes, perNode uint32
	flags, _                      uint32
	ids                           uint64
	rankTokens, nodeTokens        uint64
	expertSelections, tokenInRank uint64
}

// A census has so many blocks that MaxExperts find room in their shares, of censusShare each. Few
// tokens would do with fewer, of which some had more to count.
const (
	censusThreads = 512
	censusShare   = 2048
	censusBlocks  = MaxExperts / censusShare
)

func censusKernel(arch string) kernel.Spec {
	s := kernelSpec("census", "census.cu", arch, []string{"weft::ep::token_counts"})
	s.Defines["WEFT_CENSUS_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(censusArgs{})))
	return s
}

// NewCounter makes a Counter for experts that the ranks have in equal shares, ranksPerNode of them
// on each node, on the GPU of a communicator, which may have another number of ranks. It compiles
// the kernel, if the communicator's cache does not have it, and loads it: a driver does that only
// when no kernel runs that waits for a peer, so it is made when a handle would be.
func NewCounter(ctx context.Context, comm *weft.Comm, experts, ranks, ranksPerNode int) (*Counter, error) {
	const op = "new counter"
	if err := comm.Operations().Begin(op); err != nil {
		return nil, err
	}
	if comm.Device() == nil {
		return nil, weft.Unsupportedf("%s: the communicator is bound to no GPU; count on the host with CountRouting", op)
	}
	if err := checkPlaces(experts, ranks, ranksPerNode, device.MaxRanks); err != nil {
		return nil, err
	}
	c := &Counter{comm: comm, experts: experts, ranks: ranks, perNode: ranksPerNode}
	if err := c.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", op, err), c.program.Close())
	}
	return c, nil
}

// load makes the launch, with all that does not change from call to call.
func (c *Counter) load(ctx context.Context) error {
	d := c.comm.Device()
	var err error
	if c.program, err = enginegpu.LoadLocal(ctx, d.Context(), d.Kernels(),
		enginegpu.Source{Spec: censusKernel(d.Arch())}); err != nil {
		return err
	}
	local := c.experts / c.ranks
	a := censusArgs{
		shape: shape{experts: uint32(c.experts), local: uint32(local), reciprocal: reciprocal(local)},
		ranks: uint32(c.ranks), nodes: uint32(c.ranks / c.perNode), perNode: uint32(c.perNode),
	}
	config := cuda.LaunchConfig{Grid: cuda.Dim{X: censusBlocks}, Block: cuda.Dim{X: censusThreads}}
	c.launch, err = enginegpu.NewLaunch(c.program.Functions(0)[0], config, a)
	return err
}

// Count counts where tokens go. topk is int32 or int64 [tokens, top-k] in memory that the GPU
// reaches, beginning on a multiple of its type's size; what is no expert counts as none, -1 or
// anything else, for nobody on the host looks at it. There may be any number of tokens up to 2^24,
// none included, and up to [MaxTopK] selections of each.
//
// It enqueues one kernel in the stream, and does not wait for it; it may be captured in a graph,
// which then reads the same memory anew at each replay. With a nil stream it goes into the
// communicator's own, and Count returns when it is done. A call that is refused has enqueued
// nothing.
func (c *Counter) Count(ctx context.Context, s *weft.Stream, topk weft.Tensor, into DeviceCensus) error {
	if c.closed {
		return fmt.Errorf("%s: counter %w", opCount, weft.ErrClosed)
	}
	if err := cmp.Or(c.comm.Operations().Begin(opCount), c.check(topk, &into)); err != nil {
		return err
	}
	a := c.launch.Args
	a.tokens, a.shape.topk = uint32(topk.Shape[0]), uint32(topk.Shape[1])
	a.flags = 0
	if topk.DType == weft.Int64 {
		a.flags = flagWideIDs
	}
	a.ids = addressOf(topk)
	a.rankTokens, a.nodeTokens = addressOf(into.RankTokens), addressOf(into.NodeTokens)
	a.expertSelections, a.tokenInRank = addressOf(into.ExpertSelections), addressOf(into.TokenInRank)
	if stream := s.CUDA(); stream != nil {
		return c.launch.Start(stream)
	}
	if err := c.launch.Start(c.comm.Device().Stream()); err != nil {
		return err
	}
	return c.comm.Wait(ctx, nil)
}

// check says what is wrong with the arguments of Count.
func (c *Counter) check(topk weft.Tensor, into *DeviceCensus) error {
	if into.RankTokens.IsZero() && into.NodeTokens.IsZero() && into.ExpertSelections.IsZero() &&
		into.TokenInRank.IsZero() {
		return weft.Invalidf("%s: there is no tensor to put anything into; give at least one", opCount)
	}
	if err := cmp.Or(checkCounted(topk), whole(opCount, "experts", topk)); err != nil {
		return err
	}
	if t := into.TokenInRank; !t.IsZero() {
		if err := checkTensor(opCount, "the ranks of tokens", t, weft.Uint8, topk.Shape[0], c.ranks); err != nil {
			return err
		}
	}
	return cmp.Or(checkCounts("tokens of ranks", into.RankTokens, c.ranks),
		checkCounts("tokens of nodes", into.NodeTokens, c.ranks/c.perNode),
		checkCounts("selections of experts", into.ExpertSelections, c.experts))
}

// checkCounts says what is wrong with memory for counts, if there is any.
func checkCounts(what string, t weft.Tensor, n int) error {
	if t.IsZero() {
		return nil
	}
	if t.DType != weft.Int32 || len(t.Shape) != 1 || t.Shape[0] != n {
		return weft.Invalidf("%s: %s are %v, want int32[%d]", opCount, what, t, n)
	}
	if t.Data == nil {
		return weft.Invalidf("%s: %s have no memory", opCount, what)
	}
	return whole(opCount, what, t)
}

// Close gives the kernel up. Further calls do nothing. It comes before the communicator's Close,
// and after the last use of graphs that the Counter is part of.
//
// As a handle's Close does, it first lets all work in the rank's context end, for the
// communicator's deadline at most. If the work goes on the error wraps [weft.ErrTimeout], the
// Counter can be used no more, and Close is to be called again.
func (c *Counter) Close() error {
	if c.unloaded {
		return nil
	}
	c.closed = true
	ended, err := enginegpu.Quiesce(c.comm, "close counter", "the counter's kernel stays")
	if !ended {
		return err
	}
	c.unloaded = true
	return errors.Join(err, c.program.Close())
}

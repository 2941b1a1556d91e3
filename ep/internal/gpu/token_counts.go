package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// TokenCounter counts on a GPU where tokens go: see ep.TokenCounter.
type TokenCounter struct {
	comm             *weft.Comm
	experts          int
	ranks, perNode   int
	program          *enginegpu.Program
	launch           enginegpu.Launch[tokenCountsArgs]
	closed, unloaded bool
}

// tokenCountsArgs are the arguments of the kernel: the TokenCounts of token_counts.cu.
type tokenCountsArgs struct {
	shape                         shape
	tokens, ranks, nodes, perNode uint32
	flags, _                      uint32
	ids                           uint64
	rankTokens, nodeTokens        uint64
	expertSelections, tokenInRank uint64
}

// The kernel has so many blocks that MaxExperts find room in their shares, of countShare each. Few
// tokens would do with fewer, of which some had more to count.
const (
	countThreads = 512
	countShare   = 2048
	countBlocks  = spec.MaxExperts / countShare
)

func tokenCountsKernel(arch string) kernel.Spec {
	s := kernelSpec("token counts", "token_counts.cu", arch, []string{"weft::ep::token_counts"})
	s.Defines["WEFT_TOKEN_COUNTS_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(tokenCountsArgs{})))
	return s
}

// NewTokenCounter makes a TokenCounter.
func NewTokenCounter(ctx context.Context, comm *weft.Comm, experts, ranks, ranksPerNode int) (*TokenCounter, error) {
	const op = "new counter"
	if err := comm.Operations().Begin(op); err != nil {
		return nil, err
	}
	if comm.Device() == nil {
		return nil, weft.Unsupportedf("%s: the communicator is bound to no GPU; count on the host", op)
	}
	if err := spec.CheckExperts(experts, ranks, ranksPerNode, device.MaxRanks); err != nil {
		return nil, err
	}
	c := &TokenCounter{comm: comm, experts: experts, ranks: ranks, perNode: ranksPerNode}
	if err := c.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", op, err), c.program.Close())
	}
	return c, nil
}

// load makes the launch, with all that does not change from call to call.
func (c *TokenCounter) load(ctx context.Context) error {
	d := c.comm.Device()
	var err error
	if c.program, err = enginegpu.LoadLocal(ctx, d.Context(), d.Kernels(),
		enginegpu.ForDomain(c.ranks, enginegpu.Source{Spec: tokenCountsKernel(d.Arch())})...); err != nil {
		return err
	}
	local := c.experts / c.ranks
	a := tokenCountsArgs{
		shape: shape{experts: uint32(c.experts), local: uint32(local), reciprocal: reciprocal(local)},
		ranks: uint32(c.ranks), nodes: uint32(c.ranks / c.perNode), perNode: uint32(c.perNode),
	}
	config := cuda.LaunchConfig{Grid: cuda.Dim{X: countBlocks}, Block: cuda.Dim{X: countThreads}}
	c.launch, err = enginegpu.NewLaunch(c.program.Functions(0)[0], config, a)
	return err
}

// Count enqueues the kernel: see ep.TokenCounter.
func (c *TokenCounter) Count(ctx context.Context, s *weft.Stream, topk weft.Tensor, into spec.DeviceTokenCounts) error {
	if c.closed {
		return fmt.Errorf("%s: counter %w", spec.OpCount, weft.ErrClosed)
	}
	if err := cmp.Or(c.comm.Operations().Begin(spec.OpCount), c.check(topk, &into)); err != nil {
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
func (c *TokenCounter) check(topk weft.Tensor, into *spec.DeviceTokenCounts) error {
	if into.RankTokens.IsZero() && into.NodeTokens.IsZero() && into.ExpertSelections.IsZero() &&
		into.TokenInRank.IsZero() {
		return weft.Invalidf("%s: there is no tensor to put anything into; give at least one", spec.OpCount)
	}
	if err := cmp.Or(spec.CheckCounted(topk), whole(spec.OpCount, "experts", topk)); err != nil {
		return err
	}
	if t := into.TokenInRank; !t.IsZero() {
		if err := spec.CheckTensor(spec.OpCount, "the ranks of tokens", t, weft.Uint8, topk.Shape[0], c.ranks); err != nil {
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
		return weft.Invalidf("%s: %s are %v, want int32[%d]", spec.OpCount, what, t, n)
	}
	if t.Data == nil {
		return weft.Invalidf("%s: %s have no memory", spec.OpCount, what)
	}
	return whole(spec.OpCount, what, t)
}

// Close gives the kernel up: see ep.TokenCounter.
func (c *TokenCounter) Close() error {
	if c.unloaded {
		return nil
	}
	c.closed = true
	var err error
	c.unloaded, err = c.program.CloseIdle(c.comm, "counter")
	return err
}

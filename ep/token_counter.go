package ep

import (
	"context"

	"github.com/weftgo/weft/ep/internal/gpu"
	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// TokenCounter is [CountRouting] on the GPU that a rank is bound to. It needs no handle. It is
// local: no other rank takes part, and ranks may have TokenCounters for different numbers of
// experts and ranks. It has no memory on the GPU but its code.
//
// Its methods are called from one goroutine at a time. The kernels that they have enqueued may run
// in several streams at once.
type TokenCounter struct{ counter *gpu.TokenCounter }

// NewTokenCounter makes a TokenCounter on the GPU of a communicator: for experts in equal shares on
// so many ranks, ranksPerNode of them on each node. The communicator may have another number of
// ranks. It compiles the kernel, if the communicator's cache does not have it, and loads it. A
// driver loads a kernel only while no kernel waits for a peer, so make a TokenCounter where you
// would make a handle.
func NewTokenCounter(ctx context.Context, comm *weft.Comm, experts, ranks, ranksPerNode int) (*TokenCounter, error) {
	c, err := gpu.NewTokenCounter(ctx, comm, experts, ranks, ranksPerNode)
	if err != nil {
		return nil, err
	}
	return &TokenCounter{c}, nil
}

// Count counts where tokens go. topk is int32 or int64 [tokens, top-k] in memory that the GPU
// reaches; it begins on a multiple of its type's size. The kernel ignores -1 and every other
// selection that is no expert; the host does not read them. There are 0 to 2^24 tokens, and at most
// [MaxTopK] selections of each.
//
// It enqueues one kernel in the stream and does not wait for it. The kernel may be captured in a
// graph, which then reads the same memory anew at each replay. With a nil stream it runs in the
// communicator's own stream, and Count returns when it is done. A refused call has enqueued
// nothing.
func (c *TokenCounter) Count(ctx context.Context, s *weft.Stream, topk weft.Tensor, into spec.DeviceTokenCounts) error {
	return c.counter.Count(ctx, s, topk, into)
}

// Close unloads the kernel. Further calls do nothing. Call it before the communicator's Close, and
// after the last use of graphs that hold the kernel.
//
// Like a handle's Close it first waits until all work in the rank's context has ended, at most for
// the communicator's deadline. If work still runs then, the error wraps [weft.ErrTimeout], the
// TokenCounter cannot be used any more, and Close is to be called again.
func (c *TokenCounter) Close() error { return c.counter.Close() }

package ep

import (
	"context"

	"github.com/weftgo/weft/ep/internal/gpu"
	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// TokenCounter is [CountRouting] on the GPU that a rank is bound to, for callers that want to know
// before they have a handle, or without one. It is local: no other rank takes part, and ranks may
// have Counters for whatever numbers of experts and ranks. It has no memory on the GPU but its
// code.
//
// Its methods are called from one goroutine at a time. What they have enqueued may run in several
// streams at once.
type TokenCounter struct{ counter *gpu.TokenCounter }

// NewTokenCounter makes a TokenCounter for experts that the ranks have in equal shares, ranksPerNode of them
// on each node, on the GPU of a communicator, which may have another number of ranks. It compiles
// the kernel, if the communicator's cache does not have it, and loads it: a driver does that only
// when no kernel runs that waits for a peer, so it is made when a handle would be.
func NewTokenCounter(ctx context.Context, comm *weft.Comm, experts, ranks, ranksPerNode int) (*TokenCounter, error) {
	c, err := gpu.NewTokenCounter(ctx, comm, experts, ranks, ranksPerNode)
	if err != nil {
		return nil, err
	}
	return &TokenCounter{c}, nil
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
func (c *TokenCounter) Count(ctx context.Context, s *weft.Stream, topk weft.Tensor, into spec.DeviceTokenCounts) error {
	return c.counter.Count(ctx, s, topk, into)
}

// Close gives the kernel up. Further calls do nothing. It comes before the communicator's Close,
// and after the last use of graphs that the TokenCounter is part of.
//
// As a handle's Close does, it first lets all work in the rank's context end, for the
// communicator's deadline at most. If the work goes on the error wraps [weft.ErrTimeout], the
// TokenCounter can be used no more, and Close is to be called again.
func (c *TokenCounter) Close() error { return c.counter.Close() }

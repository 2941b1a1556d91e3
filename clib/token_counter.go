//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/ep"
)

// counter is the object of a weft_ep_token_counter.
type counter struct {
	comm    *comm
	counter *ep.TokenCounter
	ops     sync.Mutex
	streams streams

	// The arguments of the last call: see refresh.
	topk weft.Tensor
	into ep.DeviceTokenCounts
}

var counters = handle.NewTable[counter](handle.TokenCounter)

func (n *counter) owner() *comm { return n.comm }

//export goweft_ep_token_counter_create
func goweft_ep_token_counter_create(id C.uint64_t, experts, ranks, perNode C.int64_t, out *C.weft_ep_token_counter,
	ms C.int64_t,
) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_ep_token_counter"); err != nil {
			return err
		}
		made, err := ep.NewTokenCounter(ctx, c.weft, int(experts), int(ranks), int(perNode))
		if err != nil {
			return err
		}
		o := &counter{comm: c, counter: made}
		return own(counters, o, &o.ops, unsafe.Pointer(out), made)
	})
}

//export goweft_ep_token_counter_count
func goweft_ep_token_counter_count(id C.uint64_t, stream unsafe.Pointer, topk *C.weft_tensor,
	into *C.weft_ep_device_token_counts, ms C.int64_t,
) C.int {
	return timed(counters, id, ms, func(ctx context.Context, n *counter) error {
		v, err := input(into, "weft_ep_device_token_counts")
		if err != nil {
			return err
		}
		s, err := n.streams.of(n.comm, stream)
		if err != nil {
			return err
		}
		to := &n.into
		if err := cmp.Or(
			refresh(&n.topk, topk, "top-k tensor"), refresh(&to.RankTokens, v.rank_tokens, "rank_tokens tensor"),
			refresh(&to.NodeTokens, v.node_tokens, "node_tokens tensor"),
			refresh(&to.ExpertSelections, v.expert_selections, "expert_selections tensor"),
			refresh(&to.TokenInRank, v.token_in_rank, "token_in_rank tensor"),
		); err != nil {
			return err
		}
		return n.counter.Count(ctx, s, n.topk, *to)
	})
}

//export goweft_ep_token_counter_destroy
func goweft_ep_token_counter_destroy(id C.uint64_t) C.int {
	return run(counters, id, func(n *counter) error {
		err := n.counter.Close()
		if !errors.Is(err, weft.ErrTimeout) { // else its kernel may still run
			counters.Remove(uint64(id))
		}
		return err
	})
}

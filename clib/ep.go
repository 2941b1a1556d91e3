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

// epHandle is the object of a weft_ep. Its gate is that of all that is made from it, too.
type epHandle struct {
	comm    *comm
	ep      *ep.Handle
	ops     sync.Mutex
	streams streams
	spare   []*received // that were released, for the next dispatches

	// The arguments of the last calls: see refresh.
	topk, weights weft.Tensor
	rows          ep.Rows
	copies        ep.Copies
	home          struct {
		rows, out weft.Tensor
		bias      [2]weft.Tensor
	}
	back struct{ gradOut, rows, gradRows, gradRowWeights, gradTokens, gradWeights weft.Tensor }
}

var eps = handle.NewTable[epHandle](handle.EP)

func (e *epHandle) owner() *comm { return e.comm }

func specOf(p *C.weft_ep_spec) (ep.Spec, error) {
	v, err := input(p, "weft_ep_spec")
	if err != nil {
		return ep.Spec{}, err
	}
	if v.reserved != 0 {
		return ep.Spec{}, invalidf("weft_ep_spec: %d in reserved, which is 0", v.reserved)
	}
	var t ep.Tuning
	if t.Dispatch, err = tuningOf(v.dispatch_tuning); err != nil {
		return ep.Spec{}, err
	}
	if t.Combine, err = tuningOf(v.combine_tuning); err != nil {
		return ep.Spec{}, err
	}
	return ep.Spec{
		Experts: int(v.experts), TopK: int(v.topk), Hidden: int(v.hidden), MaxTokens: int(v.max_tokens),
		Layout: ep.Layout(enum(v.layout)), Reduction: ep.Reduction(enum(v.reduction)),
		Weighting: ep.Weighting(enum(v.weighting)), Payload: ep.Payload(enum(v.payload)),
		Quantize:         weft.DType(enum(v.quantize)),
		PowerOfTwoScales: v.power_of_two_scales != 0,
		ScaleOrder:       ep.ScaleOrder(enum(v.scale_order)), RowBytes: int(v.row_bytes),
		ScaleBytes: int(v.scale_bytes), Output: weft.DType(enum(v.output)),
		Counts: ep.Counts(enum(v.counts)), Capacity: int(v.capacity), Overflow: ep.Overflow(enum(v.overflow)),
		Alignment: int(v.alignment),
		SMs:       int(v.sms), SerialGroup: int(v.serial_group), Live: int(v.live), Tuning: t,
	}, nil
}

func tuningOf(p *C.weft_ep_kernel_tuning) (ep.KernelTuning, error) {
	if p == nil {
		return ep.KernelTuning{}, nil
	}
	v, err := input(p, "weft_ep_kernel_tuning")
	if err != nil {
		return ep.KernelTuning{}, err
	}
	if v.reserved != 0 {
		return ep.KernelTuning{}, invalidf("weft_ep_kernel_tuning: %d in reserved, which is 0", v.reserved)
	}
	return ep.KernelTuning{
		Threads: int(v.threads), Protocol: ep.Protocol(enum(v.protocol)), Units: int(v.units),
		Senders: int(v.senders), Dependent: int(v.dependent),
		Blocks: int(v.blocks), Bulk: int(v.bulk), Warps: int(v.warps), Parts: int(v.parts),
	}, nil
}

//export goweft_ep_check
func goweft_ep_check(p *C.weft_ep_spec, engine, ranks C.int) C.int {
	return local(func() error {
		spec, err := specOf(p)
		if err != nil {
			return err
		}
		return spec.ValidateOn(ep.Engine(enum(C.int32_t(engine))), int(ranks))
	})
}

//export goweft_ep_create
func goweft_ep_create(id C.uint64_t, p *C.weft_ep_spec, out *C.weft_ep, ms C.int64_t) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_ep"); err != nil {
			return err
		}
		spec, err := specOf(p)
		if err != nil {
			return err
		}
		h, err := ep.NewHandle(ctx, c.weft, spec)
		if err != nil {
			return err
		}
		o := &epHandle{comm: c, ep: h}
		return own(eps, o, &o.ops, unsafe.Pointer(out), h)
	})
}

//export goweft_ep_destroy
func goweft_ep_destroy(id C.uint64_t) C.int {
	return run(eps, id, func(e *epHandle) error {
		err := e.ep.Close()
		if !errors.Is(err, weft.ErrTimeout) { // else kernels still use its memory
			e.forget(uint64(id))
		}
		return err
	})
}

// forget removes the handle, and those of the objects that were made from it.
func (e *epHandle) forget(id uint64) {
	for id, r := range routings.All() {
		if r.ep == e {
			routings.Remove(id)
			r.unpin()
		}
	}
	for id, r := range receiveds.All() {
		if r.ep == e {
			receiveds.Remove(id)
		}
	}
	for id, w := range works.All() {
		if w.ep == e {
			works.Remove(id)
		}
	}
	eps.Remove(id)
}

//export goweft_ep_get
func goweft_ep_get(id C.uint64_t, info *C.weft_ep_info) C.int {
	return run(eps, id, func(e *epHandle) error {
		if err := output(info, "weft_ep_info"); err != nil {
			return err
		}
		dispatch, combine := e.ep.SMs()
		fill(info, C.weft_ep_info{
			capacity: C.int64_t(e.ep.Capacity()), memory_bytes: C.int64_t(e.ep.MemoryBytes()),
			dispatch_sms: C.int32_t(dispatch), combine_sms: C.int32_t(combine), gradient_sms: C.int32_t(e.ep.GradientSMs()),
		})
		return nil
	})
}

//export goweft_ep_combine_buffer
func goweft_ep_combine_buffer(id C.uint64_t, out *C.weft_tensor) C.int {
	return writeBuffer(id, out, (*ep.Handle).CombineBuffer)
}

//export goweft_ep_gradient_buffer
func goweft_ep_gradient_buffer(id C.uint64_t, out *C.weft_tensor) C.int {
	return writeBuffer(id, out, (*ep.Handle).GradientBuffer)
}

// writeBuffer writes a buffer of the handle to a weft_tensor.
func writeBuffer(id C.uint64_t, out *C.weft_tensor, buffer func(*ep.Handle) weft.Tensor) C.int {
	return run(eps, id, func(e *epHandle) error {
		if err := output(out, "tensor"); err != nil {
			return err
		}
		t := buffer(e.ep)
		writeTensor(out, &t)
		return nil
	})
}

//export goweft_ep_count
func goweft_ep_count(topk *C.weft_tensor, counts *C.weft_ep_token_counts) C.int {
	return local(func() error {
		v, err := input(counts, "weft_ep_token_counts")
		if err != nil {
			return err
		}
		var t weft.Tensor
		if err := refresh(&t, topk, "topk tensor"); err != nil {
			return err
		}
		c, err := ep.CountRouting(t, int(v.experts), int(v.ranks), int(v.ranks_per_node))
		if err != nil {
			return err
		}
		tell(v.rank_tokens, c.RankTokens)
		tell(v.node_tokens, c.NodeTokens)
		tell(v.expert_selections, c.ExpertSelections)
		if v.token_in_rank != nil {
			out := unsafe.Slice((*bool)(unsafe.Pointer(v.token_in_rank)), len(c.TokenInRank))
			copy(out, c.TokenInRank)
		}
		return nil
	})
}

func tell(p *C.int32_t, counts []int32) {
	if p != nil {
		copy(unsafe.Slice((*int32)(p), len(counts)), counts)
	}
}

//export goweft_ep_count_waits
func goweft_ep_count_waits(id C.uint64_t, dispatch, combine *C.weft_tensor) C.int {
	return run(eps, id, func(e *epHandle) error {
		var d, c weft.Tensor
		if err := cmp.Or(refresh(&d, dispatch, "dispatch tensor"), refresh(&c, combine, "combine tensor")); err != nil {
			return err
		}
		return e.ep.CountWaits(d, c)
	})
}

//export goweft_ep_prepare
func goweft_ep_prepare(id C.uint64_t, stream unsafe.Pointer, topk, weights *C.weft_tensor, out *C.weft_routing,
	ms C.int64_t,
) C.int {
	return timed(eps, id, ms, func(ctx context.Context, e *epHandle) error {
		if err := result(unsafe.Pointer(out), "weft_routing"); err != nil {
			return err
		}
		s, err := e.streams.of(e.comm, stream)
		if err != nil {
			return err
		}
		if err := e.selections(topk, weights); err != nil {
			return err
		}
		r, err := e.ep.Prepare(ctx, s, e.topk, e.weights)
		if err != nil {
			return err
		}
		if err := add(routings, &routing{ep: e, routing: r}, &e.ops, unsafe.Pointer(out)); err != nil {
			r.Release()
			return err
		}
		return nil
	})
}

func (e *epHandle) selections(topk, weights *C.weft_tensor) error {
	return cmp.Or(refresh(&e.topk, topk, "topk tensor"), refresh(&e.weights, weights, "weights tensor"))
}

//export goweft_ep_dispatch
func goweft_ep_dispatch(id C.uint64_t, stream unsafe.Pointer, args *C.weft_ep_dispatch_args,
	out *C.weft_ep_dispatch_result, later *C.weft_work, ms C.int64_t,
) C.int {
	return timed(eps, id, ms, func(ctx context.Context, e *epHandle) error {
		v, err := input(args, "weft_ep_dispatch_args")
		if err != nil {
			return err
		}
		if (out == nil) == (later == nil) {
			return invalidf("a dispatch gives either a result or work; pass one of them, and NULL for the other")
		}
		s, err := e.streams.of(e.comm, stream)
		if err != nil {
			return err
		}
		if err := cmp.Or(refresh(&e.rows.Data, v.rows, "rows tensor"),
			refresh(&e.rows.Scales, v.scales, "scales tensor")); err != nil {
			return err
		}
		d := dispatch{ep: e, routing: number(v.routing)}
		if d.routing != 0 {
			if v.topk != nil {
				return invalidf("a dispatch goes by a routing or by topk, not by both")
			}
			if d.by, err = e.routing(d.routing); err != nil {
				return err
			}
			d.withWeights = v.weights != nil
		}
		if err := e.selections(v.topk, v.weights); err != nil {
			return err
		}
		if later != nil {
			return d.send(ctx, s, later)
		}
		to, toScales, err := resultOf(out)
		if err != nil {
			return err
		}
		got, err := e.ep.Dispatch(ctx, s, d.args())
		if err != nil {
			return err
		}
		return d.deliver(got, out, to, toScales)
	})
}

//export goweft_ep_copy_received
func goweft_ep_copy_received(id C.uint64_t, stream unsafe.Pointer, args *C.weft_ep_copy_args, ms C.int64_t) C.int {
	return timed(eps, id, ms, func(ctx context.Context, e *epHandle) error {
		v, err := input(args, "weft_ep_copy_args")
		if err != nil {
			return err
		}
		if v.reserved != 0 {
			return invalidf("weft_ep_copy_args: %d in reserved, which is 0", v.reserved)
		}
		r, err := e.received(uint64(uintptr(unsafe.Pointer(v.received))))
		if err != nil {
			return err
		}
		s, err := e.streams.of(e.comm, stream)
		if err != nil {
			return err
		}
		to := &e.copies
		to.ScaleOrder = ep.ScaleOrder(enum(v.scale_order))
		if err := cmp.Or(
			refresh(&to.Data, v.rows, "rows tensor"), refresh(&to.Scales, v.scales, "scales tensor"),
			refresh(&to.SourceTokens, v.source_tokens, "source_tokens tensor"),
			refresh(&to.SourceRanks, v.source_ranks, "source_ranks tensor"),
			refresh(&to.RowWeights, v.row_weights, "row_weights tensor"),
			refresh(&to.RowExperts, v.row_experts, "row_experts tensor"),
			refresh(&to.RowSelectionWeights, v.row_selection_weights, "row_selection_weights tensor"),
			refresh(&to.ExpertCounts, v.expert_counts, "expert_counts tensor"), refresh(&to.Ranges, v.ranges, "ranges tensor"),
			refresh(&to.SourceCounts, v.source_counts, "source_counts tensor"),
		); err != nil {
			return err
		}
		return e.ep.CopyReceived(ctx, s, r, *to)
	})
}

//export goweft_ep_combine
func goweft_ep_combine(id C.uint64_t, stream unsafe.Pointer, args *C.weft_ep_combine_args, later *C.weft_work,
	ms C.int64_t,
) C.int {
	return timed(eps, id, ms, func(ctx context.Context, e *epHandle) error {
		v, err := input(args, "weft_ep_combine_args")
		if err != nil {
			return err
		}
		r, s, err := e.by(v.routing, stream)
		if err != nil {
			return err
		}
		h := &e.home
		if err := cmp.Or(refresh(&h.rows, v.rows, "rows tensor"), refresh(&h.out, v.out, "output")); err != nil {
			return err
		}
		h.rows.Generation = e.generation(v.received)
		var biases [2]weft.Tensor
		bias := biases[:0]
		for i, name := range [...]string{"first bias", "second bias"} {
			if v.bias[i] != nil {
				if err := refresh(&h.bias[i], v.bias[i], name); err != nil {
					return err
				}
				bias = append(bias, h.bias[i])
			}
		}
		if v.weights != nil {
			if err := refresh(&e.weights, v.weights, "weights tensor"); err != nil {
				return err
			}
		}
		c := ep.CombineArgs{Routing: r, Rows: h.rows, Out: h.out, Bias: bias}
		if v.weights != nil {
			c.Weights = e.weights
		}
		if later == nil {
			return e.ep.Combine(ctx, s, c)
		}
		if err := result(unsafe.Pointer(later), "weft_work"); err != nil {
			return err
		}
		w, err := e.ep.SendCombine(ctx, s, c)
		if err != nil {
			return err
		}
		return addWork(&work{dispatch: dispatch{ep: e}, combine: w}, later)
	})
}

//export goweft_ep_dispatch_backward
func goweft_ep_dispatch_backward(id C.uint64_t, stream unsafe.Pointer, args *C.weft_ep_dispatch_backward_args,
	ms C.int64_t,
) C.int {
	return timed(eps, id, ms, func(ctx context.Context, e *epHandle) error {
		v, err := input(args, "weft_ep_dispatch_backward_args")
		if err != nil {
			return err
		}
		r, s, err := e.by(v.routing, stream)
		if err != nil {
			return err
		}
		b := &e.back
		if err := cmp.Or(
			refresh(&b.gradRows, v.grad_rows, "grad_rows tensor"),
			refresh(&b.gradRowWeights, v.grad_row_weights, "grad_row_weights tensor"),
			refresh(&b.gradTokens, v.grad_tokens, "grad_tokens tensor"),
			refresh(&b.gradWeights, v.grad_weights, "grad_weights tensor"),
		); err != nil {
			return err
		}
		b.gradRows.Generation = e.generation(v.received)
		return e.ep.DispatchBackward(ctx, s, ep.DispatchBackwardArgs{
			Routing: r, GradRows: b.gradRows, GradRowWeights: b.gradRowWeights, GradTokens: b.gradTokens,
			GradWeights: b.gradWeights,
		})
	})
}

//export goweft_ep_combine_backward
func goweft_ep_combine_backward(id C.uint64_t, stream unsafe.Pointer, args *C.weft_ep_combine_backward_args,
	ms C.int64_t,
) C.int {
	return timed(eps, id, ms, func(ctx context.Context, e *epHandle) error {
		v, err := input(args, "weft_ep_combine_backward_args")
		if err != nil {
			return err
		}
		r, s, err := e.by(v.routing, stream)
		if err != nil {
			return err
		}
		b := &e.back
		if err := cmp.Or(
			refresh(&b.gradOut, v.grad_out, "grad_out tensor"), refresh(&b.rows, v.rows, "rows tensor"),
			refresh(&b.gradRows, v.grad_rows, "grad_rows tensor"),
			refresh(&b.gradWeights, v.grad_weights, "grad_weights tensor"),
		); err != nil {
			return err
		}
		b.rows.Generation = e.generation(v.received)
		return e.ep.CombineBackward(ctx, s, ep.CombineBackwardArgs{
			Routing: r, GradOut: b.gradOut, Rows: b.rows, GradRows: b.gradRows, GradWeights: b.gradWeights,
		})
	})
}

// by is the routing of the operations that follow a dispatch.
func (e *epHandle) by(r C.weft_routing, stream unsafe.Pointer) (*ep.Routing, *weft.Stream, error) {
	by, err := e.routing(number(r))
	if err != nil {
		return nil, nil, err
	}
	s, err := e.streams.of(e.comm, stream)
	return by.routing, s, err
}

// routing is the routing of a handle, if it is one of this ep handle's.
func (e *epHandle) routing(id uint64) (*routing, error) {
	r, err := routings.Get(id)
	if err != nil {
		return nil, err
	}
	if r.ep != e {
		return nil, invalidf("the weft_routing is another weft_ep's")
	}
	return r, nil
}

// generation is the generation of a received batch, 0 for none. A released batch has NoGeneration:
// package ep then refuses it on every rank.
func (e *epHandle) generation(received C.weft_received) uint32 {
	id := uint64(uintptr(unsafe.Pointer(received)))
	if id == 0 {
		return 0
	}
	r, err := e.received(id)
	if err != nil {
		return ep.NoGeneration
	}
	return r.Data.Generation
}

// received returns the received batch of a C handle, if it belongs to this ep handle.
func (e *epHandle) received(id uint64) (*ep.Received, error) {
	r, err := receiveds.Get(id)
	if err != nil {
		return nil, err
	}
	if r.ep != e {
		return nil, invalidf("the weft_received is another weft_ep's")
	}
	return r.received, nil
}

//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"runtime"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/ep"
)

// routing is the object of a weft_routing.
type routing struct {
	ep      *epHandle
	routing *ep.Routing
	// tensors of host memory that C holds, except those that are to be read anew
	parts   [C.WEFT_SOURCE_SELECTIONS + 1]weft.Tensor
	pinner  runtime.Pinner // holds those that are Go's memory where they are
	weights runtime.Pinner // the same of weights
}

var routings = handle.NewTable[routing](handle.Routing)

func (r *routing) owner() *comm { return r.ep.comm }

// gotWeights says that the weights of the tensors are outdated.
func (r *routing) gotWeights() {
	r.parts[C.WEFT_ROW_WEIGHTS], r.parts[C.WEFT_ROW_SELECTION_WEIGHTS] = weft.Tensor{}, weft.Tensor{}
	r.weights.Unpin()
}

// unpin releases the tensors that C holds.
func (r *routing) unpin() {
	r.pinner.Unpin()
	r.weights.Unpin()
}

// pin holds a part where it is.
func (r *routing) pin(part C.int, t *weft.Tensor) {
	if part == C.WEFT_ROW_WEIGHTS || part == C.WEFT_ROW_SELECTION_WEIGHTS {
		r.weights.Pin(t.Data)
		return
	}
	r.pinner.Pin(t.Data)
}

// number is the handle of a routing in a struct.
func number(r C.weft_routing) uint64 { return uint64(uintptr(unsafe.Pointer(r))) }

//export goweft_routing_get
func goweft_routing_get(id C.uint64_t, info *C.weft_routing_info) C.int {
	return run(routings, id, func(r *routing) error {
		if err := output(info, "weft_routing_info"); err != nil {
			return err
		}
		t := r.routing.Traffic()
		fill(info, C.weft_routing_info{
			tokens: C.int64_t(r.routing.Tokens()), rows: C.int64_t(r.routing.Rows()), received: C.int64_t(r.routing.Received()),
			demand: C.int64_t(r.routing.Demand()), selections: C.int64_t(t.Selections),
			visits: C.int64_t(t.Visits), remote_rows: C.int64_t(t.RemoteRows),
		})
		return nil
	})
}

//export goweft_routing_tensor
func goweft_routing_tensor(id C.uint64_t, part C.int, out *C.weft_tensor) C.int {
	return run(routings, id, func(r *routing) error {
		if err := output(out, "tensor"); err != nil {
			return err
		}
		if part < 0 || int(part) >= len(r.parts) {
			return invalidf("part %d of a routing, want a weft_routing_part", part)
		}
		t := &r.parts[part]
		if r.ep.comm.weft.Device() != nil {
			writeTensor(out, new(r.part(part))) // a graph may have made it another since
			return nil
		}
		if t.Data == nil {
			*t = r.part(part)
			if t.Data != nil {
				r.pin(part, t)
			}
		}
		writeTensor(out, t)
		return nil
	})
}

// part asks for a tensor. A tensor that is asked for twice may be in new memory the second time. A
// tensor that the layout does not have is WEFT_NONE.
func (r *routing) part(part C.int) weft.Tensor {
	switch part {
	case C.WEFT_EXPERT_COUNTS:
		return r.routing.ExpertCounts()
	case C.WEFT_EXPERT_DEMAND:
		return r.routing.ExpertDemand()
	case C.WEFT_PADDED_COUNTS:
		return r.routing.PaddedCounts()
	case C.WEFT_EXPERT_OFFSETS:
		return r.routing.ExpertOffsets()
	case C.WEFT_RANGES:
		return r.routing.Ranges()
	case C.WEFT_SOURCE_COUNTS:
		return r.routing.SourceCounts()
	case C.WEFT_SOURCE_RANKS:
		return r.routing.SourceRanks()
	case C.WEFT_SOURCE_TOKENS:
		return r.routing.SourceTokens()
	case C.WEFT_SOURCE_SELECTIONS:
		return r.routing.SourceSelections()
	case C.WEFT_ROW_WEIGHTS:
		return r.routing.RowWeights()
	case C.WEFT_ROW_EXPERTS:
		experts, _ := r.routing.RowSelections()
		return experts
	case C.WEFT_ROW_DEMAND:
		return r.routing.RowDemand()
	default: // WEFT_ROW_SELECTION_WEIGHTS
		_, weights := r.routing.RowSelections()
		return weights
	}
}

//export goweft_routing_describe
func goweft_routing_describe(id C.uint64_t, p *C.weft_routing_description) C.int {
	return run(routings, id, func(r *routing) error {
		v, err := input(p, "weft_routing_description")
		if err != nil {
			return err
		}
		if r.ep.comm.weft.Device() != nil {
			return weft.Unsupportedf("on GPUs routing metadata is in the GPU's memory: use weft_routing_tensor")
		}
		describe(v.expert_counts, r, C.WEFT_EXPERT_COUNTS)
		describe(v.expert_demand, r, C.WEFT_EXPERT_DEMAND)
		describe(v.padded_counts, r, C.WEFT_PADDED_COUNTS)
		describe(v.expert_offsets, r, C.WEFT_EXPERT_OFFSETS)
		describe(v.ranges, r, C.WEFT_RANGES)
		describe(v.source_counts, r, C.WEFT_SOURCE_COUNTS)
		describe(v.source_ranks, r, C.WEFT_SOURCE_RANKS)
		describe(v.source_tokens, r, C.WEFT_SOURCE_TOKENS)
		describe(v.source_selections, r, C.WEFT_SOURCE_SELECTIONS)
		describe(v.row_weights, r, C.WEFT_ROW_WEIGHTS)
		r.describeSelections(v.row_experts, v.row_selection_weights)
		return nil
	})
}

// describe copies a part to where C wants it, if it does. The two have elements of the same size.
func describe[E any](to *E, r *routing, part C.int) {
	if to == nil {
		return
	}
	if t := r.part(part); t.Data != nil {
		n := t.Elems()
		copy(unsafe.Slice(to, n), unsafe.Slice((*E)(t.Data), n))
	}
}

func (r *routing) describeSelections(experts *C.int64_t, weights *C.float) {
	if experts == nil && weights == nil {
		return
	}
	narrow, of := r.routing.RowSelections()
	if narrow.Data == nil {
		return
	}
	n := narrow.Elems()
	if experts != nil && n > 0 {
		wide := unsafe.Slice(experts, n)
		for i, e := range weft.SliceOf[int32](narrow) {
			wide[i] = C.int64_t(e)
		}
	}
	if weights != nil && n > 0 {
		copy(unsafe.Slice((*float32)(weights), n), weft.SliceOf[float32](of))
	}
}

//export goweft_routing_release
func goweft_routing_release(id C.uint64_t) C.int {
	return run(routings, id, func(r *routing) error {
		routings.Remove(uint64(id))
		r.unpin()
		r.routing.Release()
		return nil
	})
}

// received is the object of a weft_received.
type received struct {
	ep       *epHandle
	received *ep.Received
}

var receiveds = handle.NewTable[received](handle.Received)

func (r *received) owner() *comm { return r.ep.comm }

// newReceived is one that was released, if there is one.
func (e *epHandle) newReceived() *received {
	n := len(e.spare)
	if n == 0 {
		return &received{ep: e}
	}
	r := e.spare[n-1]
	e.spare = e.spare[:n-1]
	return r
}

//export goweft_received_release
func goweft_received_release(id C.uint64_t) C.int {
	return run(receiveds, id, func(r *received) error {
		receiveds.Remove(uint64(id))
		r.received.Release()
		r.received = nil
		r.ep.spare = append(r.ep.spare, r)
		return nil
	})
}

// dispatch is one on its way.
type dispatch struct {
	ep          *epHandle
	routing     uint64   // the routing of the dispatch; 0: it makes one
	by          *routing // the same
	withWeights bool     // it brings the routing weights
}

// args are the caller's arguments.
func (d *dispatch) args() ep.DispatchArgs {
	a := ep.DispatchArgs{TopK: d.ep.topk, Weights: d.ep.weights, Rows: d.ep.rows}
	if d.by != nil {
		a.Routing = d.by.routing
	}
	return a
}

// resultOf checks where a result is to be put.
func resultOf(out *C.weft_ep_dispatch_result) (data, scales *C.weft_tensor, err error) {
	v, err := input(out, "weft_ep_dispatch_result")
	if err != nil {
		return nil, nil, err
	}
	*(*uint64)(unsafe.Pointer(&out.received)), *(*uint64)(unsafe.Pointer(&out.routing)) = 0, 0
	for _, t := range [...]*C.weft_tensor{v.data, v.scales} {
		if t != nil {
			if err := output(t, "tensor of a weft_ep_dispatch_result"); err != nil {
				return nil, nil, err
			}
		}
	}
	return v.data, v.scales, nil
}

// deliver writes a received batch to C's structs.
func (d *dispatch) deliver(got *ep.Received, out *C.weft_ep_dispatch_result, data, scales *C.weft_tensor) error {
	o := d.ep.newReceived()
	o.received = got
	r, err := receiveds.Add(o, &d.ep.ops)
	if err != nil {
		got.Release()
		return err
	}
	by := d.routing
	if d.withWeights {
		d.by.gotWeights()
	}
	if by == 0 {
		if by, err = routings.Add(&routing{ep: d.ep, routing: got.Routing}, &d.ep.ops); err != nil {
			receiveds.Remove(r)
			got.Release()
			got.Routing.Release()
			return err
		}
	}
	*(*uint64)(unsafe.Pointer(&out.received)), *(*uint64)(unsafe.Pointer(&out.routing)) = r, by
	if data != nil {
		writeTensor(data, &got.Data)
	}
	if scales != nil {
		writeTensor(scales, &got.Scales)
	}
	return nil
}

// What carries rows of a dispatch through slots has in both its forms: ports_dispatch.cuh and ports_hosts.cuh.
#pragma once
#include "ports.cuh"
#include "slots_dispatch.cuh"

namespace weft {

// Go: carryArgs of dispatchArgs.
struct RowCarry {
	Ports ports;
	Dispatch of;
};

static_assert(sizeof(RowCarry) == WEFT_DISPATCH_BYTES + sizeof(Ports) + WIDER, "not the size of the host's struct");

__device__ __forceinline__ u64 record_at(const Dispatch &a, const Batch &b, u32 src, u64 i) {
	return a.records + (((u64)b.turn * a.group.ranks + src) * a.selections.by + i) * sizeof(Pair);
}

// slot_at is where a window has the slot of src's token t.
__device__ __forceinline__ u64 slot_at(const Dispatch &a, const Batch &b, u32 src, u32 t) {
	return a.rows + b.buffer * a.turn_bytes + ((u64)src * a.shape.capacity + t) * a.slot_bytes;
}

// batch_of is what a launch carries.
__device__ __forceinline__ Batch batch_of(const Dispatch &a, const Count &count) {
	Batch b;
	b.mask = a.state->mask();
	b.epoch = count.epoch, b.turn = count.turn, b.buffer = (u32)(b.epoch & 1);
	b.flags = a.flags, b.few = few(a), b.own = a.group.window[a.group.rank];
	return b;
}

// rows_tag is the tag of the call that the batch is of.
__device__ __forceinline__ u32 rows_tag(const Dispatch &a, const Batch &b) {
	return call_tag(call_of(b), (b.flags & ROUTE) != 0 ? 0 : *prepare_number(a));
}

} // namespace weft

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

} // namespace weft

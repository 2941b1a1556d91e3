// The addresses that a program's entries stand for in a launch. The arguments say where buffers begin and how large a
// chunk is, so the program is the same for all launches.
#pragma once
#include "program.cuh"

namespace weft {

namespace plan {

// address is where an entry of a program points, in launches of odd numbers.
__device__ __forceinline__ u64 address(const Plan &a, u64 entry) {
	u32 index = (u32)entry, where = entry >> 32 & 0xFF, rank = (u32)(entry >> 40);
	if (where == NOWHERE) return 0;
	char *base = where == INPUT	   ? a.in[rank]
				 : where == OUTPUT ? a.out[rank]
				 : where == OUTBOX ? a.outbox
				 : where == INBOX  ? a.inbox
								   : a.group.window[rank];
	if (where >= ALL_INPUTS) {
		base = where == ALL_INPUTS ? a.all_in : where == ALL_OUTPUTS ? a.all_out : a.all_window;
		if (base == nullptr) return 0;
	}
	if (where == INBOUND) return (u64)base + a.inbound + (u64)index * 8;
	if (where == DATA || where == ALL_DATA) base += a.data;
	if (where == PACKETS) base += a.packets + index * a.chunk;
	return (u64)base + index * a.chunk;
}

// half is how much further it points in launches of even numbers.
__device__ __forceinline__ u64 half(const Plan &a, u64 entry) {
	u32 where = entry >> 32 & 0xFF;
	if (where == PACKETS) return a.packets_half;
	return where == DATA || where == ALL_DATA && a.all_window != nullptr ? a.data_half : 0;
}

// place makes the addresses of a program that is not in shared memory.
__device__ __noinline__ void place(const Plan &a, const u64 *entries, u64 *operands, bool second) {
	for (u32 i = threadIdx.x; i < a.operands; i += blockDim.x) {
		operands[i] = address(a, entries[i]) + (second ? half(a, entries[i]) : 0);
	}
}

} // namespace plan
} // namespace weft

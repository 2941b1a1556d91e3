// What carries a combine through slots to far ranks, and theirs here: see ports.cuh. It is a part of slots_combine.cu.
// A row is what this rank has for a token of the peer's: their sum, or exact a row a selection.
#pragma once
#include "ports.cuh"

namespace weft {

// Go: carryArgs of combineArgs.
struct SumCarry {
	Ports ports;
	Combine of;
};

static_assert(sizeof(SumCarry) == WEFT_COMBINE_BYTES + sizeof(Ports) + WIDER, "not the size of the host's struct");

// SumBox is where the parts of a box are.
struct SumBox {
	u32 tokens, each; // of the part; rows that a token may have
	u64 rows;

	__device__ __forceinline__ SumBox(const SumCarry &c, u32 part, u32 all) {
		tokens = share(c.ports, part, all);
		each = EXACT ? c.of.shape.topk : 1;
		rows = sizeof(PortHeader) + aligned16((u64)tokens * each * 4);
	}

	// index is where it stands which row the k-th of the part's j-th token is.
	__device__ __forceinline__ u64 index(u32 j, u32 k) const {
		return sizeof(PortHeader) + ((u64)j * each + k) * 4;
	}
};

// home_of is the slot of what rank r sends for token t, or for its selection k.
__device__ __forceinline__ char *home_of(const Combine &a, const Batch &b, u32 r, u32 t, u32 k) {
	u64 slot = EXACT ? (u64)t * a.shape.topk + k : (u64)r * a.shape.capacity + t;
	return b.own + a.home + b.buffer * a.turn_bytes + slot * a.row_bytes;
}

__device__ __forceinline__ u64 pack_sums(const SumCarry &c, const Batch &b, u32 call, const PortLink &l, char *out) {
	const Combine &a = c.of;
	u32 lane = threadIdx.x & 31, peer = l.channel.peer, topk = a.shape.topk, sent = (u32)a.sent[peer];
	SumBox box(c, l.part, sent);
	for (u32 j = threadIdx.x / 32; j < box.tokens; j += blockDim.x / 32) {
		u32 t = l.part + j * c.ports.parts, here = 0;
		if (lane < topk) here = a.recv_rows[((u64)peer * a.shape.capacity + t) * topk + lane].target;
		if constexpr (EXACT) {
			for (u32 k = 0; k < topk; k++) {
				u32 of = __shfl_sync(0xFFFFFFFFu, here, k), row = 0;
				if (of != 0) {
					row = next_row(lane);
					copy_row(out + box.rows + (u64)(row - 1) * a.row_bytes, a.y + (u64)(of - 1) * a.row_bytes,
							 a.row_bytes, lane);
				}
				if (lane == 0) *(u32 *)(out + box.index(j, k)) = row;
			}
		} else {
			u32 row = 0;
			if (__any_sync(0xFFFFFFFFu, here != 0)) {
				row = next_row(lane);
				copy_row(out + box.rows + (u64)(row - 1) * a.row_bytes, home_of(a, b, peer, t, 0), a.row_bytes, lane);
			}
			if (lane == 0) *(u32 *)(out + box.index(j, 0)) = row;
		}
	}
	if (threadIdx.x == 0) write_header(out, make_uint4(a.tokens, a.free, call, 0), sent);
	__syncthreads();
	return box.rows + (u64)*row_counter() * a.row_bytes;
}

__device__ __forceinline__ bool land_sums(const SumCarry &c, const Batch &b, Wait &w, u32 call, const PortLink &l,
										  const char *in) {
	const Combine &a = c.of;
	u32 lane = threadIdx.x & 31, src = l.channel.peer;
	PortHeader h;
	if (!read_header(w, in, src, call, a.tokens, h)) return false;
	SumBox box(c, l.part, h.tokens);
	for (u32 j = threadIdx.x / 32; j < box.tokens; j += blockDim.x / 32) {
		for (u32 k = 0; k < box.each; k++) {
			u32 row = load_relaxed_sys4(in + box.index(j, k));
			if (row != 0)
				copy_row(home_of(a, b, src, l.part + j * c.ports.parts, k), in + box.rows + (u64)(row - 1) * a.row_bytes,
						 a.row_bytes, lane);
		}
	}
	if (l.part != 0) return true;
	if (threadIdx.x == 0) store16(b.own + opening_at(a.group, a.heads, b.turn, src), h.opening);
	for (u32 i = threadIdx.x; i < c.ports.blocks; i += blockDim.x)
		*(u32 *)(b.own + a.returned + ((u64)src * c.ports.blocks + i) * 4) = (u32)b.epoch + 1;
	return true;
}

} // namespace weft

namespace weft::ports {

__global__ void __launch_bounds__(512, 1) carry_sums(const __grid_constant__ SumCarry c) {
	const Combine &a = c.of;
	wait_for_previous();
	Count count = *count_of(a.state, a.first);
	if (a.state->stopped != 0) return; // the launches beside this one say so
	Batch b;
	b.mask = a.state->mask();
	b.epoch = count.epoch, b.turn = count.turn, b.buffer = (u32)(b.epoch & 1);
	b.flags = a.flags, b.own = a.group.window[a.group.rank];
	Wait w(a.group, a.state, OP_COMBINE, b.epoch + 1);
	u32 call = call_tag(a.call, (u32)a.sent[a.group.ranks + 1]);
	carry(
		c.ports, b.mask, b.flags, w, [&](const PortLink &l, char *out) { return pack_sums(c, b, call, l, out); },
		[&](const PortLink &l, const char *in) { return land_sums(c, b, w, call, l, in); });
}

} // namespace weft::ports

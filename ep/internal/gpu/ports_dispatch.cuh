// What carries a dispatch through slots to far ranks, and theirs here: see ports.cuh. A box has, before its index,
//
//	counts   of the first part, where counts travel: as send_counts and send_token_counts store them
//	records  of the part's tokens, [tokens][top-k]
//
// A row is one slot, scales behind it: once a token, whatever experts of the peer it goes to.
#pragma once
#include "ports_rows.cuh"

namespace weft {

// RowBox is where the parts of a box are.
struct RowBox {
	u32 tokens, counts; // of the part; words
	u64 records, index, rows;

	__device__ __forceinline__ RowBox(const RowCarry &c, const Batch &b, u32 part, u32 all) {
		const Dispatch &a = c.of;
		bool route = (b.flags & ROUTE) != 0;
		tokens = share(c.ports, part, all);
		counts = route && part == 0 && !from_records(b) ? COUNTS + a.shape.local : 0;
		records = sizeof(PortHeader) + aligned16((u64)counts * 4);
		index = records + aligned16(route ? (u64)tokens * a.shape.topk * sizeof(Pair) : 0);
		rows = index + aligned16((u64)tokens * 4);
	}
};

__device__ __forceinline__ u64 pack_rows(const RowCarry &c, const Batch &b, u32 call, const PortLink &l, char *out) {
	const Dispatch &a = c.of;
	u32 lane = threadIdx.x & 31, me = a.group.rank, peer = l.channel.peer, topk = a.shape.topk;
	bool route = (b.flags & ROUTE) != 0, move = (b.flags & MOVE) != 0;
	RowBox box(c, b, l.part, a.tokens);
	for (u32 i = threadIdx.x; i < box.counts; i += blockDim.x)
		((u32 *)(out + sizeof(PortHeader)))[i] = load_relaxed_sys4(b.own + count_at(a, b.turn, peer, i));
	for (u32 j = threadIdx.x / 32; j < box.tokens; j += blockDim.x / 32) {
		u32 t = l.part + j * c.ports.parts, e = 0, row = 0;
		u64 i = (u64)t * topk + lane;
		if (lane < topk) e = selection(a, b, i);
		if (route && lane < topk) {
			uint2 record = load_relaxed_sys8(b.own + record_at(a, b, me, i));
			*(uint2 *)(out + box.records + ((u64)j * topk + lane) * sizeof(Pair)) = record;
		}
		if (move && __any_sync(0xFFFFFFFFu, e != 0 && rank_of(a.shape, e - 1) == peer)) {
			row = next_row(lane);
			copy_row(out + box.rows + (u64)(row - 1) * a.slot_bytes, b.own + slot_at(a, b, me, t), a.slot_bytes, lane);
		}
		if (lane == 0) ((u32 *)(out + box.index))[j] = row;
	}
	if (threadIdx.x == 0) write_header(out, make_uint4(a.tokens, a.free, call, 0), a.tokens);
	__syncthreads();
	return box.rows + (u64)*row_counter() * a.slot_bytes;
}

__device__ __forceinline__ bool land_rows(const RowCarry &c, const Batch &b, Wait &w, u32 call, const PortLink &l,
										  const char *in) {
	const Dispatch &a = c.of;
	u32 lane = threadIdx.x & 31, src = l.channel.peer, topk = a.shape.topk;
	bool route = (b.flags & ROUTE) != 0, move = (b.flags & MOVE) != 0;
	PortHeader h;
	if (!read_header(w, in, src, call, a.shape.capacity, h)) return false;
	RowBox box(c, b, l.part, h.tokens);
	for (u32 i = threadIdx.x; i < box.counts; i += blockDim.x)
		*(u32 *)(b.own + count_at(a, b.turn, src, i)) = load_relaxed_sys4(in + sizeof(PortHeader) + 4 * i);
	for (u32 j = threadIdx.x / 32; j < box.tokens; j += blockDim.x / 32) {
		u32 t = l.part + j * c.ports.parts, row = load_relaxed_sys4(in + box.index + 4 * j);
		if (route && lane < topk) {
			uint2 record = load_relaxed_sys8(in + box.records + ((u64)j * topk + lane) * sizeof(Pair));
			*(uint2 *)(b.own + record_at(a, b, src, (u64)t * topk + lane)) = record;
		}
		if (move && row != 0)
			copy_row(b.own + slot_at(a, b, src, t), in + box.rows + (u64)(row - 1) * a.slot_bytes, a.slot_bytes, lane);
	}
	if (l.part != 0) return true;
	if (threadIdx.x == 0) store16(b.own + opening_at(a.group, a.heads, b.turn, src), h.opening);
	for (u32 i = threadIdx.x; move && i < c.ports.blocks; i += blockDim.x)
		*(u32 *)(b.own + a.arrived + ((u64)src * c.ports.blocks + i) * 4) = (u32)b.epoch + 1;
	return true;
}

} // namespace weft

namespace weft::ports {

__global__ void __launch_bounds__(512, 1) carry_rows(const __grid_constant__ RowCarry c) {
	const Dispatch &a = c.of;
	wait_for_previous();
	Count count = *count_of(a.state, 0);
	if (a.state->stopped != 0) return; // the launches beside this one say so
	Batch b = batch_of(a, count);
	Wait w(a.group, a.state, (b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);
	u32 call = rows_tag(a, b);
	carry(
		c.ports, b.mask, b.flags, w, [&](const PortLink &l, char *out) { return pack_rows(c, b, call, l, out); },
		[&](const PortLink &l, const char *in) { return land_rows(c, b, w, call, l, in); });
}

} // namespace weft::ports

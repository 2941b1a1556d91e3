// The row map, the prepare of direct mode: every selection of every token gets its final row, and every
// rank learns what arrives. Both ends of a selection compute the row, so a row needs no message of its own.
//
// Blocks divide a rank's tokens in the same way on every rank. Each phase is a header:
//
//	count    row_map_count.cuh     a block sends its tokens' records to every rank, and counts its
//	                               selections of each expert and its tokens for each rank
//	prefix   row_map_count.cuh     it adds up the counts of lower blocks, and sends the sums to the ranks
//	                               concerned; the last block sends its rank's totals to every rank
//	arrived  row_map_arrived.cuh   it counts the records that the blocks of its number have sent here
//	base     row_map_bases.cuh     totals, prefixes and zones give the first row of each count
//	assign   row_map_assign.cuh    every selection gets its row: base + index among the block's
//
// row_map.cuh has the arguments and what is exchanged, row_map_bitmap.cuh the counting in shared memory,
// row_map_selections.cuh how threads share out selections.
//
//	this rank's block b          block b of a peer          last block of a peer
//	records, mark  ----------->  arrived
//	prefix  ------------------>  base
//	               <----------------------------------------  totals
//
// What a block waits for: lower blocks of its own launch (prefix), blocks of its own number (arrived, base),
// last blocks (base). None of these waits for this block's later phases, so no cycle arises. All blocks of
// a launch run at once.
#include "row_map_assign.cuh"

namespace weft {

// announce_prepare opens the operation at every rank and tells it how many tokens this rank has. It comes
// before anything else, so that no rank waits long. It needs no fence: the words refer to no other memory.
__device__ __forceinline__ void announce_prepare(const RowMap &a, const Operation &o) {
	WEFT_TRACED(o.trace.signalled_by_all();)
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		announce(a.group, o.mask, a.openings, o.turn, r, a.call, 0, 0);
		send_count(a, o, r, total_at(a, o, a.group.rank, columns(a)), a.tokens);
	}
}

// await_openings waits for the other ranks' openings, on threads that have no source in Sources::learn.
__device__ __forceinline__ void await_openings(const RowMap &a, const Operation &o, Wait &w) {
	count_and_empty(a.group, o, w, a.openings);
	for (u32 r = threadIdx.x - MAX_RANKS; r < a.group.ranks; r += blockDim.x - MAX_RANKS) {
		if (!holds(o.mask, r)) await_peer(w, o.own, a.openings, o.turn, r, a.call);
	}
}

__device__ __forceinline__ void map_rows(const RowMap &a) {
	extern __shared__ __align__(16) char shared[];
	OwnTokens own(a);
	Operation o;
	bool begun = o.begin(a.group, a.state, 0, OP_PREPARE);
	// All threads of a block or none: half a block would publish counts of half its tokens.
	if (!__syncthreads_and(begun)) return;
	if (blockIdx.x < a.blocks) {
		Wait w(a.group, a.state, OP_PREPARE, o.epoch);
		u64 at = shared_at(shared);
		BitMap own_map(at, a.map_entries, own.share.to - own.share.from, columns(a));
		Bases bases(a, shared + 2 * map_bytes(a.map_entries));
		Sources sources;
		if (blockIdx.x == 0) announce_prepare(a, o);
		count_own(a, o, own, own_map);
		mark(a.group, o, a.marks);
		u64 tokens = sources.look(a, o);
		send_prefixes(a, o, w, bases.own);
		// Before any data of the peers is awaited: they may have made another call.
		if (blockIdx.x == 0) await_openings(a, o, w);
		sources.learn(a, o, w, tokens);
		if (!await_marks(a.group, o, w, a.marks)) return;
		WEFT_TRACED(o.trace.first_at(SITE_COUNTED);)
		BitMap arrived_map(at + map_bytes(a.map_entries), a.map_entries, sources.most(a), arrived_buckets(a));
		arrived_map.count([&](u32 t, u32 first, u32 n) { add_arrived(a, o, own.q, sources, arrived_map, t, first, n); },
						  [](u32, u32) {});
		find_bases(a, o, w, sources, bases); // what it awaits was sent while this block counted what arrives
		if (__syncthreads_or(w.over) != 0) return;
		assign_rows(a, o, own, sources, own_map, arrived_map, bases);
		clear_absent(a, sources);
	} else {
		mark(a.group, o, a.marks); // no block waits for it, but a mark has to grow with every operation
	}
	WEFT_TRACED(o.trace.first_at(SITE_ROUTED);)
	leave(a.state, o.epoch - 1, o.turn, true);
	WEFT_TRACED(o.trace.first_at(SITE_END);)
}

} // namespace weft

namespace weft::direct {

__global__ void __launch_bounds__(768, 1) row_map(const __grid_constant__ RowMap a) { map_rows(a); }

} // namespace weft::direct

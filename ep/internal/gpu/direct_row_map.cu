// The row map, the prepare of direct mode: every selection of every token gets its final row, and every
// rank learns what arrives. Both ends of a selection compute the row, so a row needs no message of its own.
//
// Blocks divide a rank's tokens in the same way on every rank. Rows by expert have phases, each of them a header:
//
//	count    row_map_count.cuh     a block sends its tokens' records to every rank, and counts its
//	                               selections of each expert and its tokens for each rank
//	prefix   row_map_count.cuh     it adds up the counts of lower blocks, and sends the sums to the ranks
//	                               concerned; the last block sends its rank's totals to every rank
//	arrived  row_map_arrived.cuh   it counts the records that the blocks of its number have sent here
//	base     row_map_bases.cuh     totals, prefixes and zones give the first row of each count
//	assign   row_map_assign.cuh    every selection gets its row: base + index among the block's
//
//	this rank's block b          block b of a peer          last block of a peer
//	records, mark  ----------->  arrived
//	prefix  ------------------>  base
//	               <----------------------------------------  totals
//
// Token-major rows have a way of their own, row_map_tokens.cuh: there are few counts, so every block sends its own to
// all, and bits say which tokens come. All of it is words that are their own flags, so no mark is awaited.
//
//	this rank's block b          block b of a peer          every block of a peer
//	counts  ---------------------------------------------->  bases
//	bits  -------------------->  which tokens come
//	selections  -------------->  selections that come
//
// row_map.cuh has the arguments and what is exchanged, row_map_bitmap.cuh the counting of rows by expert in shared
// memory, row_map_selections.cuh how threads share out selections.
//
// What a block waits for: lower blocks of its own launch (prefix), blocks of its own number (arrived, base), last
// blocks (base); token-major all blocks (counts). None of these waits for this block's later phases, so no cycle
// arises. All blocks of a launch run at once.
#include "row_map_assign.cuh"
#include "row_map_tokens.cuh"

namespace weft {

// announce_prepare opens the operation at every rank and tells it how many tokens this rank has. It comes
// before anything else, so that no rank waits long. It needs no fence: the words refer to no other memory.
__device__ __forceinline__ void announce_prepare(const RowMap &a, const Operation &o) {
	WEFT_TRACED(o.trace.signalled_by_all();)
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		announce(a.group, o.mask, a.openings, o.turn, r, a.call, 0, 0);
		send_count(a, o, r, tokens_at(a, o, a.group.rank), a.tokens);
	}
}

// await_openings waits for the other ranks' openings, on threads that have no source in Sources::learn.
__device__ __forceinline__ void await_openings(const RowMap &a, const Operation &o, Wait &w) {
	count_and_empty(a.group, o, w, a.openings);
	for (u32 r = threadIdx.x - MAX_RANKS; r < a.group.ranks; r += blockDim.x - MAX_RANKS) {
		if (!holds(o.mask, r)) await_peer(w, o.own, a.openings, o.turn, r, a.call);
	}
}

// map_experts is the row map of rows by expert, of a block that has a share. False: a wait gave up.
__device__ __forceinline__ bool map_experts(const RowMap &a, const Operation &o, const OwnTokens &own, char *shared) {
	u64 at = shared_at(shared);
	Wait w(a.group, a.state, OP_PREPARE, o.epoch);
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
	if (!await_marks(a.group, o, w, a.marks)) return false;
	WEFT_TRACED(o.trace.first_at(SITE_COUNTED);)
	BitMap arrived_map(at + map_bytes(a.map_entries), a.map_entries, sources.most(a), a.shape.experts);
	arrived_map.count([&](u32 t, u32 first, u32 n) { add_arrived(a, o, own.q, sources, arrived_map, t, first, n); },
					  [](u32, u32) {});
	find_bases(a, o, w, sources, bases); // what it awaits was sent while this block counted what arrives
	if (__syncthreads_or(w.over) != 0) return false;
	assign_rows(a, o, own, sources, own_map, arrived_map, bases);
	clear_absent(a, sources);
	return true;
}

// map_tokens is the row map of token-major rows, of a block that has a share. Its TokenMap is clear. False: a wait
// gave up.
__device__ __forceinline__ bool map_tokens(const RowMap &a, const Operation &o, const OwnTokens &own,
										   const TokenMap &m) {
	Wait w(a.group, a.state, OP_PREPARE, o.epoch);
	Windows windows(a.group);
	Sources sources;
	if (blockIdx.x == 0) announce_prepare(a, o);
	count_tokens(a, own, m);
	WEFT_TRACED(o.trace.signalled_first(1);)
	__syncthreads();
	send_shares(a, o, windows, m);
	// With more blocks than a warp has lanes a sum reads counts in several rounds. Measured, prepares then last shorter
	// where the counts of a block go ahead of all its selections. With 24 blocks they do not.
	if (a.blocks > 32) __syncthreads();
	send_selections(a, o, windows, own, m);
	u64 tokens = sources.look(a, o);
	// Before any data of the peers is awaited: they may have made another call.
	if (blockIdx.x == 0) await_openings(a, o, w);
	sources.learn(a, o, w, tokens);
	find_token_rows(a, o, w, sources, m);
	// What is read now is on its way while others still count.
	ReadAhead ahead;
	ahead.read(a, o, 0, first_coming());
	OwnTokens again(a); // to read the selections again is better than to keep them in registers
	if (__syncthreads_or(w.over) != 0) return false;
	WEFT_TRACED(o.trace.first_at(SITE_COUNTED);)
	number_arrived(a, sources, m);
	assign_own_tokens(a, again, m);
	clear_absent(a, sources);
	take_selections(a, o, w, sources, m, ahead);
	return __syncthreads_or(w.over) == 0;
}

__device__ __forceinline__ void map_rows(const RowMap &a) {
	extern __shared__ __align__(16) char shared[];
	OwnTokens own(a);
	Operation o;
	bool begun = o.begin(a.group, a.state, 0, OP_PREPARE);
	if (TOKEN_MAJOR && blockIdx.x < a.blocks) TokenMap(a, shared).clear(a);
	// All threads of a block or none: half a block would publish counts of half its tokens.
	if (!__syncthreads_and(begun)) return;
	if (TOKEN_MAJOR || blockIdx.x >= a.blocks) mark_unread(a, o);
	if (blockIdx.x < a.blocks) {
		bool mapped;
		if constexpr (TOKEN_MAJOR)
			mapped = map_tokens(a, o, own, TokenMap(a, shared));
		else
			mapped = map_experts(a, o, own, shared);
		if (!mapped) return;
	}
	WEFT_TRACED(o.trace.first_at(SITE_ROUTED);)
	leave(a.state, o.epoch - 1, o.turn, true);
	WEFT_TRACED(o.trace.first_at(SITE_END);)
}

} // namespace weft

namespace weft::direct {

__global__ void __launch_bounds__(768, 1) row_map(const __grid_constant__ RowMap a) { map_rows(a); }

} // namespace weft::direct

// What the operations of handles share whose rows have their final places before they leave. Blocks
// share the tokens among each other, the same on every rank, so a block has to do with the blocks
// of its own number elsewhere alone.
//
// A rank's part of the window has, beside what exchange.cuh lists, regions that peers write:
//
//	totals   2 turns x [ranks][experts + ranks + 1] numbers with the operation's beside them: a source's
//	         selections of each expert, its tokens for each rank, its tokens
//	records  2 turns x [ranks][capacity][top-k] pairs: the local expert + 1 of a selection, 0: it goes
//	         elsewhere; weight
//	befores  2 turns x [ranks][blocks][local, or by rank 1] numbers as in totals: what the blocks before
//	         this one have of the source's that comes here
//	words    for each lane 2 turns x [ranks] words with which a rank begins: the operation's number, the
//	         call, and where its rows are
//	marks    for each lane [ranks][blocks] numbers of operations: the block of the source is done with its share
//	blocks   received rows, scales behind them
//
// Place and push are one lane of operations, pull is another. Nobody ends an operation before all
// have marked it, and nobody marks it before it has read what the others began it with. So one
// place of each is enough; words, totals, records and befores, which a block may read after its
// mark, have two.
#pragma once
#include "exchange.cuh"

namespace weft {

// What a launch does, beside what exchange.cuh names.
enum {
	BY_RANK = 4, // a token has one row at a rank
	PACKED = 8,	 // zones of experts follow each other
};

// Turn is the operation that is under way, as a thread knows it.
struct Turn {
	u64 mask, epoch;
	u32 turn;
	char *own;

	// begin reads what every block has to know. False: the operation is refused.
	__device__ __forceinline__ bool begin(const Group &g, State *s, u32 first, u32 op) {
		Count count = *count_of(s, first + blockIdx.x);
		u32 stopped = s->stopped;
		mask = s->mask;
		epoch = count.epoch + 1;
		turn = count.turn;
		own = g.window[g.rank];
		if (stopped != 0) refuse(g, op, epoch);
		return stopped == 0;
	}
};

// Share is this block's of n tokens.
struct Share {
	u32 from, to;

	__device__ __forceinline__ Share(u32 n) : Share(n, gridDim.x) {}
	__device__ __forceinline__ Share(u32 n, u32 blocks)
		: from(n * blockIdx.x / blocks), to(n * (blockIdx.x + 1) / blocks) {}
};

// A word has, from the top, 16 bits of the operation's number, 16 of the call that it is part of
// (Go: device.CallPrepare and its like) and of the routing that it goes by, and 32 of what the rank
// has to say.
constexpr u32 CALL_SHIFT = 32, EPOCH_SHIFT = 48;

__device__ __forceinline__ u64 word_at(const Group &g, const Turn &o, u64 words, u32 src) {
	return words + ((o.epoch & 1) * g.ranks + src) * 8;
}

// tell_word begins the operation with a word for a rank.
__device__ __forceinline__ void tell_word(const Group &g, const Turn &o, u64 words, u32 rank, u32 call, u32 word) {
	if (!holds(o.mask, rank))
		store_relaxed_sys_u64(g.window[rank] + word_at(g, o, words, g.rank),
							  o.epoch << EPOCH_SHIFT | (u64)call << CALL_SHIFT | word);
}

// tell begins it with a word for every rank. One block does, at once: what the stream did before is
// over.
__device__ __forceinline__ void tell(const Group &g, const Turn &o, u64 words, u32 call, u32 word) {
	for (u32 r = threadIdx.x; r < g.ranks; r += blockDim.x) {
		fence_sys();
		tell_word(g, o, words, r, call, word);
	}
}

// told says whether a word is one of this operation.
__device__ __forceinline__ bool told(const Turn &o, u64 word) {
	return word >> EPOCH_SHIFT == o.epoch << EPOCH_SHIFT >> EPOCH_SHIFT;
}

// count_words counts how long the ranks keep this one waiting for the words that they begin with.
// One warp of the launch does.
__device__ __forceinline__ void count_words(const Turn &o, Wait &w, u64 words) {
	if (blockIdx.x != 0 || threadIdx.x >= 32) return;
	count_waits(w, o.mask, [&](u32 r) { return told(o, load_relaxed_sys_u64(o.own + word_at(w.group, o, words, r))); });
}

// hear awaits the word that rank r begins with, and gives up if r makes another call, or goes by
// another routing. It gives what r has to say.
__device__ __forceinline__ u32 hear(const Turn &o, Wait &w, u64 words, u32 r, u32 call) {
	const char *p = o.own + word_at(w.group, o, words, r);
	u64 v = load_acquire_sys_u64(p);
	while (!told(o, v) && !w.over && w.more(r, o.epoch, v >> EPOCH_SHIFT)) v = load_acquire_sys_u64(p);
	u32 theirs = (u32)(v >> CALL_SHIFT) & 0xFFFF;
	if (!w.over && theirs != call) w.give_up(r, CAUSE_MISMATCH, call, theirs);
	return (u32)v;
}

// mark says at every rank that this block is done with its share. The last threads do, which wait
// for the fence; others may go on.
__device__ __forceinline__ void mark(const Group &g, const Turn &o, u64 marks) {
	__syncthreads();
	for (u32 r = blockDim.x - 1 - threadIdx.x; r < g.ranks; r += blockDim.x) {
		if (holds(o.mask, r)) continue;
		fence_sys();
		store_relaxed_sys4(g.window[r] + marks + ((u64)g.rank * gridDim.x + blockIdx.x) * 4, (u32)o.epoch);
	}
}

// await_marks returns when the blocks of this number are done with theirs everywhere. False: it
// gave up, on every thread of the block.
__device__ __forceinline__ bool await_marks(const Group &g, const Turn &o, Wait &w, u64 marks) {
	for (u32 r = threadIdx.x; r < g.ranks; r += blockDim.x) {
		if (!holds(o.mask, r)) await_epoch(w, r, o.own + marks + ((u64)r * gridDim.x + blockIdx.x) * 4, (u32)o.epoch);
	}
	return __syncthreads_or(w.over) == 0;
}

// Described is what a routing says of what comes here, and of how much is wanted everywhere. Go:
// described.
struct Described {
	int *counts, *offsets; // [local]: rows of an expert, and its first
	int *came, *tokens;	   // [ranks]: tokens of the source that come here, and all that it has
	int *rows;			   // that are received, pads included
	u32 *routing;		   // the number of the Prepare that the routing is of
	int *demand, *padded;  // [local]: selections of an expert, and rows with pads
	int *wanted;		   // [ranks]: rows that the rank would need
	int *over, *excess; // [ranks]: the first of its experts that has too many selections, or -1, and how many those are

	__device__ __forceinline__ Described(int *at, u32 local, u32 ranks) {
		counts = at;
		offsets = counts + local;
		came = offsets + local;
		tokens = came + ranks;
		rows = tokens + ranks;
		routing = (u32 *)rows + 1;
		demand = rows + 2;
		padded = demand + local;
		wanted = padded + local;
		over = wanted + ranks;
		excess = over + ranks;
	}
};

// each_pad calls f with every row that fills up a zone, all warps of all blocks together. align is
// the multiple to which zones are padded.
template <class F> __device__ __forceinline__ void each_pad(const Described &d, u32 local, u32 align, F f) {
	u32 most = align - 1, warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
	for (u64 i = warp; i < (u64)local * most; i += blockDim.x / 32 * gridDim.x) {
		u32 le = (u32)(i / most), row = (u32)(d.counts[le] + i % most);
		if (row < (u32)d.padded[le]) f((u32)d.offsets[le] + row);
	}
}

#if __CUDA_ARCH__ >= 900
constexpr u32 MOST_CARRIERS = 16;

// Carrier is a warp that moves rows by bulk copies, through shared memory of its own: a part comes,
// and leaves for each place where it is to stand. What it waits for is no rank: a bulk copy ends as
// a load does, and no block may end before. All lanes call its functions.
struct Carrier {
	char *buffer;
	u64 *barrier;
	u32 parity, lane;

	// Every warp that carries has one, from the beginning of the kernel. What peers have stored is
	// read as soon as fence_async comes after it was awaited.
	__device__ __forceinline__ Carrier(char *buffers, u64 *barriers, u32 chunk, u32 warp, u32 lane)
		: buffer(buffers + warp * chunk), barrier(barriers + warp), parity(0), lane(lane) {
		if (lane == 0) {
			barrier_init(barrier, 1);
			fence_barrier_init();
		}
		__syncwarp();
	}

	__device__ __forceinline__ void fetch(const char *from, u32 bytes) const {
		if (lane != 0) return;
		bulk_wait_read(); // what was stored before has left the buffer
		barrier_expect(barrier, bytes);
		bulk_load(buffer, from, bytes, barrier);
	}

	__device__ __forceinline__ void await() {
		while (!barrier_awaited(barrier, parity)) {
		}
		__syncwarp();
		parity ^= 1;
	}

	// store is followed by commit when the part has gone everywhere.
	__device__ __forceinline__ void store(char *to, u32 bytes) const {
		if (lane == 0) bulk_store(to, buffer, bytes);
	}

	__device__ __forceinline__ void commit() const {
		if (lane == 0) bulk_commit();
	}

	// finish returns when all that was stored stands where it is to stand.
	__device__ __forceinline__ void finish() const {
		if (lane == 0) bulk_wait();
	}
};
#endif

// LEADER marks, of a token's selections that go to one rank, the first. The rest of the word is the
// row + 1.
constexpr u32 LEADER = 1u << 31;

} // namespace weft

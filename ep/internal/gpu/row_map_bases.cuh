// Phase "base" of a row map of rows by expert: where the rows of a block's tokens begin, and what the routing says of
// the rows that arrive here.
//
// A block numbers the tokens of its share from 0. A row is that number plus a base:
//
//	base = first row of the expert's zone
//	     + what lower ranks send to that expert   (totals)
//	     + the source's lower blocks              (prefix)
//
// There is a base for each column of this rank's tokens, and one for each bucket of what arrives. Both
// ends of a selection compute the same row, from the same totals and the same prefix. Every block computes
// the bases that it needs; block 0 describes what arrives.
//
// Bases stand in shared memory, or in global memory of the block's own if shared memory has no room.
// Barriers order their uses.
#pragma once
#include "row_map_arrived.cuh"
#include "row_map_count.cuh"

namespace weft {

// Bases are the bases of a block, and what they are computed from.
struct Bases {
	u32 *own;	  // [experts]: of this rank's tokens. First, the block's prefixes
	u32 *arrived; // [ranks][local]: of what arrives. First, what lower ranks send
	u32 *sum;	  // [experts]: what all ranks send
	u32 *prefix;  // as arrived: the prefix of the source's block of this number

	__device__ __forceinline__ Bases(const RowMap &a, char *shared) {
		u32 n = max(a.shape.experts, a.group.ranks);
		own = n <= BUCKETS ? (u32 *)shared : a.bases + (u64)blockIdx.x * 4 * n;
		n = max(n, BUCKETS);
		prefix = own + n;
		arrived = prefix + n;
		sum = arrived + n;
	}
};

// rows_kept is how many of n rows from the first of an expert's zone on the capacity has room for.
__device__ __forceinline__ u32 rows_kept(const RowMap &a, u32 zone, u32 n) {
	if ((a.flags & PACKED) == 0) return min(n, a.rows);
	return zone < a.rows ? min(n, a.rows - zone) : 0;
}

// place_arrived computes the bases of what arrives for a local expert, whose zone begins at row `zone`.
// Block 0 describes the zone: `sum` selections, `padded` rows. One thread does both.
__device__ __forceinline__ void place_arrived(const RowMap &a, const Described &d, const Bases &bases, u32 le, u32 zone,
											  u32 sum, u32 padded) {
	u32 kept = rows_kept(a, zone, sum);
	bool first = blockIdx.x == 0;
	if (first) {
		d.counts[le] = (int)kept;
		d.offsets[le] = (int)zone;
		d.demand[le] = (int)sum;
		d.padded[le] = (int)((a.flags & PACKED) != 0 ? rows_kept(a, zone, padded) : kept);
	}
#pragma unroll 2
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 *p = bases.arrived + src * a.shape.local + le, begin = *p,
			end = src + 1 < a.group.ranks ? p[a.shape.local] : sum, from = min(begin, kept);
		*p = zone + begin + bases.prefix[src * a.shape.local + le];
		if (first)
			a.ranges[(u64)le * a.group.ranks + src] = (long long)((u64)from << 32 | min(end - begin, kept - from));
	}
}

// place_zones computes where the zones of a rank's experts begin, and raises the bases by it. A warp calls
// it, and takes 32 experts at a time. Block 0 describes the rank's demand.
__device__ __forceinline__ void place_zones(const RowMap &a, const Operation &o, const Described &described,
											const Bases &bases, u32 rank, u32 lane) {
	u32 next = 0, received = 0;		  // the end of the zones so far, and how many rows they keep
	u32 over = EMPTY, excess = 0; // the first expert over its capacity, and its selections
#pragma unroll 1
	for (u32 first = 0; first < a.shape.local; first += 32) {
		u32 le = first + lane, e = rank * a.shape.local + le;
		bool here = le < a.shape.local;
		u32 sum = here ? bases.sum[e] : 0, zone = le * a.rows, padded = sum;
		if ((a.flags & PACKED) != 0) { // a prefix sum of the padded zones
			padded = (sum + a.align - 1) & ~(a.align - 1);
			u32 behind = padded;
#pragma unroll
			for (u32 i = 1; i < 32; i *= 2) {
				u32 left = __shfl_up_sync(0xFFFFFFFFu, behind, i);
				if (lane >= i) behind += left;
			}
			zone = next + behind - padded;
			next += __shfl_sync(0xFFFFFFFFu, behind, 31);
		} else {
			next += __reduce_add_sync(0xFFFFFFFFu, sum);
			received += __reduce_add_sync(0xFFFFFFFFu, min(sum, a.rows));
			u32 many = __ballot_sync(0xFFFFFFFFu, sum > a.rows);
			if (over == EMPTY && many != 0) {
				over = first + __ffs((int)many) - 1;
				excess = __shfl_sync(0xFFFFFFFFu, sum, __ffs((int)many) - 1);
			}
		}
		if (!here) continue;
		bases.own[e] += holds(o.mask, rank) ? NO_ROWS : zone;
		if (rank == a.group.rank) place_arrived(a, described, bases, le, zone, sum, padded);
	}
	if (blockIdx.x != 0 || lane != 0) return;
	bool absent = holds(o.mask, rank);
	described.wanted[rank] = absent ? 0 : (int)next;
	described.over[rank] = absent || over == EMPTY ? -1 : (int)(rank * a.shape.local + over);
	described.excess[rank] = (int)excess;
	if (rank == a.group.rank) *described.rows = (int)((a.flags & PACKED) != 0 ? min(next, a.rows) : received);
}

// find_expert_bases waits for totals and prefixes, an expert a thread, and computes the bases of rows by
// expert, a rank a warp. All threads of the block call it.
__device__ __forceinline__ void find_expert_bases(const RowMap &a, const Operation &o, Wait &w, const Described &d,
												  const Bases &bases) {
	u32 local = a.shape.local, mine = a.group.rank * local;
	for (u32 e = threadIdx.x; e < a.shape.experts; e += blockDim.x) {
		// This rank has as many buckets of what arrives as there are experts: the thread also waits for the
		// prefix of bucket e.
		u32 from = rank_of(a.shape, e), sum = 0, own = 0;
		const char *p = o.own + share_at(a, o, from, blockIdx.x, e - from * local);
		u64 prefix = load_relaxed_sys_u64(p);
		each_total(a, o, w, e, [&](u32 src, u32 n) {
			if (src < a.group.rank) own += n;
			if (e - mine < local) bases.arrived[src * local + e - mine] = sum;
			sum += n;
		});
		bases.prefix[e] = holds(o.mask, from) ? 0 : count_of_word(a, o.epoch, w, from, p, prefix);
		bases.own[e] += own;
		bases.sum[e] = sum;
	}
	__syncthreads();
	for (u32 r = threadIdx.x / 32; r < a.group.ranks; r += blockDim.x / 32)
		place_zones(a, o, d, bases, r, threadIdx.x & 31);
}

// find_bases computes the block's bases, and block 0 describes what arrives. If a wait gave up, w.over
// says so on its thread. All threads of the block call it.
__device__ __forceinline__ void find_bases(const RowMap &a, const Operation &o, Wait &w, const Sources &sources,
										   const Bases &bases) {
	Described d(a.described, a.shape.local, a.group.ranks);
	// by the last threads, which wait for nothing else
	for (u32 src = blockDim.x - 1 - threadIdx.x; blockIdx.x == 0 && src < a.group.ranks; src += blockDim.x) {
		d.tokens[src] = (int)sources.tokens[src];
		d.from_source[src] = (int)await_count(a, o, w, src, total_at(a, o, src, a.shape.experts + a.group.rank));
	}
	if (blockIdx.x == 0 && threadIdx.x == 0) *d.routing = (u32)o.epoch;
	find_expert_bases(a, o, w, d, bases);
}

} // namespace weft

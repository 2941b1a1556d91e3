// BitMap counts and numbers tokens in shared memory. It has buckets (a column, or what a source sends),
// and for each bucket a bit for each token of a tile: the bit is set if the token belongs to the bucket.
//
// A prefix sum over the words of a bucket then gives each token its index among the bucket's tokens, in
// the order of tokens: the index is the word's prefix plus the set bits below the token's own.
//
//	bucket 0   | 32 bits, prefix | 32 bits, prefix | ...   width entries of 8 bytes: tokens t, t + 32, ...
//	bucket 1   | 32 bits, prefix | 32 bits, prefix | ...
//	starts     | bucket 0 | bucket 1 | ...                 what the prefixes of the tile begin with
//
// A map is whole if it has a bit for every token and bucket of the block's share. Then it is filled once:
// count fills it and gives the counts; when the first row of each bucket is known, raise_all adds it to
// the prefixes. A map that is not whole is filled tile by tile, at most BUCKETS buckets at a time, and once
// more by number_tiles when the first rows are known.
//
// Threads set bits by atomic operations on shared memory. Barriers of the block separate the steps.
#pragma once
#include "row_map.cuh"

namespace weft {

constexpr u32 BUCKETS = 1024, MOST_WIDTH = 33;

// map_bytes is how much shared memory a map takes. Go: mapBytes.
__device__ __forceinline__ u32 map_bytes(u32 entries) { return entries * 8 + BUCKETS * 4; }

struct BitMap {
	u64 entries; // [buckets][width]: bits of 32 tokens, and the index of the first of them
	u64 starts;	 // [buckets]
	u32 tokens, buckets;
	u32 width; // entries of a bucket. It is odd, so that threads that walk adjacent buckets use all banks.

	// The tile has all tokens if there is room, or as many as there is room for.
	__device__ __forceinline__ BitMap(u64 at, u32 room, u32 tokens, u32 buckets)
		: entries(at), starts(at + room * 8), tokens(tokens), buckets(buckets) {
		width = (min(min(room / min(buckets, BUCKETS), MOST_WIDTH), (tokens + 31) / 32 + 1) - 1) | 1;
	}

	__device__ __forceinline__ u32 tile() const { return width * 32; }

	__device__ __forceinline__ bool all_buckets() const { return EVEN || buckets <= BUCKETS; }
	__device__ __forceinline__ bool whole() const { return all_buckets() && tokens <= tile(); }

	__device__ __forceinline__ u64 entry(u32 bucket, u32 i) const { return entries + (bucket * width + i) * 8; }

	// add adds token t to a bucket, if `here`. add_tokens adds several of the same 32 tokens as t.
	__device__ __forceinline__ void add(bool here, u32 bucket, u32 t) const { add_tokens(here, bucket, t, 1u << t % 32); }
	__device__ __forceinline__ void add_tokens(bool here, u32 bucket, u32 t, u32 bits) const {
		or_shared4(entry(bucket, t / 32), bits, here);
	}

	// number is the index of token t in the bucket, raised by what the prefixes begin with. If not
	// `here`, it is any number.
	__device__ __forceinline__ u32 number(bool here, u32 bucket, u32 t) const {
		uint2 e = load_shared8(here ? entry(bucket, t / 32) : entries);
		return e.y + __popc(e.x & ((1u << t % 32) - 1));
	}

	// add_prefixes writes a bucket's prefixes. It returns the sum up to the end of the tile, and leaves it as
	// the start of the next tile.
	__device__ __forceinline__ u32 add_prefixes(u32 bucket) const {
		constexpr u32 FLIGHT = 8; // entries that are read before any is written
		u32 sum = load_shared4(starts + bucket * 4);
#pragma unroll 1
		for (u32 first = 0; first < width; first += FLIGHT) {
			u32 v[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) v[j] = first + j < width ? load_shared4(entry(bucket, first + j)) : 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (first + j < width) store_shared4(entry(bucket, first + j) + 4, sum);
				sum += __popc(v[j]);
			}
		}
		store_shared4(starts + bucket * 4, sum);
		return sum;
	}

	// raise adds n to a bucket's prefixes.
	__device__ __forceinline__ void raise(u32 bucket, u32 n) const {
#pragma unroll 1
		for (u32 i = 0; i < width; i++) {
			u64 at = entry(bucket, i) + 4;
			store_shared4(at, load_shared4(at) + n);
		}
	}

	// each calls f for each of n buckets, on one thread each.
	template <class F> __device__ __forceinline__ static void each(u32 n, F f) {
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) f(i);
	}

	// fill clears the tile that begins at token t, and has add(t, first, n) add its tokens to the n buckets
	// from `first` on.
	template <class F> __device__ __forceinline__ void fill(u32 t, u32 first, u32 n, F add) const {
		for (u32 i = threadIdx.x; i < n * width; i += blockDim.x) store_shared4(entries + i * 8, 0);
		__syncthreads();
		add(t, first, n);
		__syncthreads();
	}

	// count fills all tiles, and calls f(bucket, count) for each bucket. All threads of the block call it.
	// Of a whole map no barrier follows: a thread may go on with the buckets that it has counted itself.
	template <class Fill, class F> __device__ __forceinline__ void count(Fill add, F f) const {
#pragma unroll 1
		for (u32 first = 0;; first += BUCKETS) {
			u32 n = min(BUCKETS, buckets - first);
			each(n, [&](u32 i) { store_shared4(starts + i * 4, 0); });
#pragma unroll 1
			for (u32 t = 0;; t += tile()) {
				bool last = t + tile() >= tokens;
				fill(t, first, n, add);
				each(n, [&](u32 i) {
					u32 sum = add_prefixes(i);
					if (last) f(first + i, sum);
				});
				if (whole()) return;
				__syncthreads();
				if (last) break;
			}
			if (first + BUCKETS >= buckets) break;
		}
	}

	// raise_all adds start(bucket) to the prefixes of a whole map. Each thread raises the buckets that it has
	// counted itself, so no barrier is needed before it; one is needed after it.
	template <class F> __device__ __forceinline__ void raise_all(F start) const {
		each(buckets, [&](u32 i) { raise(i, start(i)); });
	}

	// number_tiles fills the tiles of a map that is not whole once more, with prefixes that begin with
	// start(bucket). For each tile it calls f(t, first, n), which may ask for numbers in the n buckets from
	// `first` on. All threads of the block call it.
	template <class Fill, class Start, class F>
	__device__ __forceinline__ void number_tiles(Fill add, Start start, F f) const {
#pragma unroll 1
		for (u32 first = 0;; first += BUCKETS) {
			u32 n = min(BUCKETS, buckets - first);
			each(n, [&](u32 i) { store_shared4(starts + i * 4, start(first + i)); });
#pragma unroll 1
			for (u32 t = 0;; t += tile()) {
				fill(t, first, n, add);
				each(n, [&](u32 i) { add_prefixes(i); });
				__syncthreads();
				f(t, first, n);
				__syncthreads();
				if (t + tile() >= tokens) break;
			}
			if (all_buckets() || first + BUCKETS >= buckets) break;
		}
	}
};

} // namespace weft

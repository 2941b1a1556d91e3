// Phase "assign" of a row map of rows by expert: each selection of this rank's tokens gets its row, and so does each
// that arrives. The row is the token's number in a BitMap, whose prefixes now begin with the bases.
//
//	this rank's tokens   dest_rows: row + 1 at the expert's rank, and LEADER; home: the expert if there is a row
//	what arrives         recv_rows: row + 1
//
// Both are memory of this GPU, which later kernels read. A row beyond the capacity is none: 0.
//
// Where both maps are whole, half of the block assigns the one and half the other at the same time: the
// phase lasts as long as one warp's instructions. Else the maps, which share no memory, are filled again
// tile by tile, one after the other.
#pragma once
#include "row_map_bases.cuh"

namespace weft {

// row_limit is where the rows end that a local expert or, packed, a rank has.
__device__ __forceinline__ u32 row_limit(const RowMap &a, u32 le) {
	return (a.flags & PACKED) != 0 ? a.rows : (le + 1) * a.rows;
}

// assign_own assigns rows to this rank's selections in a map's tile at t, whose n buckets begin with column
// `first`. All threads that q is of call it.
__device__ __forceinline__ void assign_own(const RowMap &a, const OwnTokens &own, const Quads &q, const BitMap &m,
										   u32 t, u32 first, u32 n) {
	u32 from = own.share.from + t;
	own.each(a, q, from, min(from + m.tile(), own.share.to), [&](const Selections &c) {
		u32 rank[QUAD], dest[QUAD];
		bool now[QUAD], kept[QUAD]; // now: its bucket is one of these n; kept: it has a row
		uint2 home[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			rank[j] = c.rank(a, j);
			u32 bucket = (c.e[j] == 0 ? 0 : c.e[j] - 1) - first;
			now[j] = j < c.n && (EVEN || bucket < n);
			u32 row = m.number(now[j], bucket, c.t - from);
			kept[j] = now[j] && c.e[j] != 0 && row < row_limit(a, c.e[j] - 1 - rank[j] * a.shape.local);
			dest[j] = kept[j] ? row + 1 : 0;
			home[j] = make_uint2((kept[j] ? c.e[j] : 0) | c.e[j] << 16, c.weight[j]);
		}
		if (m.all_buckets()) {
			u32 first_ones = leaders(a, q, kept, rank);
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) dest[j] |= (first_ones >> j & 1) != 0 ? LEADER : 0;
			store_words(q.vectors(), a.dest_rows + c.i, c.n, dest);
			store_pairs(q.vectors(), (uint2 *)a.home + c.i, c.n, home);
			return;
		}
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if (!now[j]) continue;
			a.dest_rows[c.i + j] = dest[j];
			((uint2 *)a.home)[c.i + j] = home[j];
		}
	});
}

// mark_leaders marks each token's first selection at each rank, where assign_own could not: a map had some
// of the buckets at a time. It follows when all have their rows. All threads of the block call it.
__device__ __forceinline__ void mark_leaders(const RowMap &a, const OwnTokens &own) {
	own.each(a, own.q, own.share.from, own.share.to, [&](const Selections &c) {
		u32 rank[QUAD];
		bool kept[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) rank[j] = c.rank(a, j), kept[j] = j < c.n && a.dest_rows[c.i + j] != 0;
		u32 first_ones = leaders(a, own.q, kept, rank);
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if ((first_ones >> j & 1) != 0) a.dest_rows[c.i + j] |= LEADER;
		}
	});
}

// assign_arrived assigns rows to what the blocks of this number have sent, in a map's tile at t, whose n
// buckets begin with `first`. All threads that q is of call it.
__device__ __forceinline__ void assign_arrived(const RowMap &a, const Operation &o, const Quads &q,
											   const Sources &sources, const BitMap &m, u32 t, u32 first, u32 n) {
	each_arrived(a, o, q, sources, t, min(t + m.tile(), m.tokens), [&](const ArrivedQuad &c) {
		uint2 recv_row[QUAD];
		bool now[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			bool comes = c.record[j].x != 0;
			u32 bucket = (comes ? bucket_of(a, c, j) : 0) - first;
			now[j] = j < c.n && (EVEN || bucket < n);
			u32 row = m.number(now[j] && comes, bucket, c.t - t);
			recv_row[j] = make_uint2(comes && row < row_limit(a, c.record[j].x - 1) ? row + 1 : 0, c.record[j].y);
		}
		if (m.all_buckets()) {
			store_pairs(q.vectors(), (uint2 *)a.recv_rows + c.i, c.n, recv_row);
			return;
		}
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if (now[j]) ((uint2 *)a.recv_rows)[c.i + j] = recv_row[j];
		}
	});
}

// MapBases gives the base of a map's bucket: of the map of this rank's columns, and of what arrives. Columns of ranks,
// by which rows are not numbered, have the base 0.
struct MapBases {
	const u32 *own, *arrived;
	u32 experts;

	__device__ __forceinline__ MapBases(const RowMap &a, const Bases &bases)
		: own(bases.own), arrived(bases.arrived), experts(a.shape.experts) {}

	__device__ __forceinline__ u32 of_own(u32 column) const { return column < experts ? own[column] : 0; }
	__device__ __forceinline__ u32 of_arrived(u32 bucket) const { return arrived[bucket]; }
};

// assign_by_tiles assigns all rows where a map is not whole. It is not inlined, so that the common case
// has shorter code.
__device__ __noinline__ void assign_by_tiles(const RowMap &a, const Operation o, const BitMap own_map,
											 const BitMap arrived_map, const MapBases bases) {
	OwnTokens own(a);
	Sources sources;
	own_map.number_tiles([&](u32 t, u32 first, u32 n) { add_own(a, o, own, own_map, false, t, first, n); },
						 [&](u32 column) { return bases.of_own(column); },
						 [&](u32 t, u32 first, u32 n) { assign_own(a, own, own.q, own_map, t, first, n); });
	if (!own_map.all_buckets()) mark_leaders(a, own);
	arrived_map.number_tiles(
		[&](u32 t, u32 first, u32 n) { add_arrived(a, o, own.q, sources, arrived_map, t, first, n); },
		[&](u32 bucket) { return bases.of_arrived(bucket); },
		[&](u32 t, u32 first, u32 n) { assign_arrived(a, o, own.q, sources, arrived_map, t, first, n); });
}

// assign_rows assigns all rows. All threads of the block call it.
__device__ __forceinline__ void assign_rows(const RowMap &a, const Operation &o, const OwnTokens &own,
											const Sources &sources, const BitMap &own_map, const BitMap &arrived_map,
											const Bases &bases) {
	MapBases of(a, bases);
	if (!own_map.whole() || !arrived_map.whole()) {
		assign_by_tiles(a, o, own_map, arrived_map, of);
		return;
	}
	own_map.raise_all([&](u32 column) { return of.of_own(column); });
	arrived_map.raise_all([&](u32 bucket) { return of.of_arrived(bucket); });
	__syncthreads();
	u32 half = blockDim.x / 2;
	bool lower = threadIdx.x < half;
	Quads q(a.shape.topk, lower ? threadIdx.x : threadIdx.x - half, half);
	if (lower)
		assign_own(a, own, q, own_map, 0, 0, own_map.buckets);
	else
		assign_arrived(a, o, q, sources, arrived_map, 0, 0, arrived_map.buckets);
}

} // namespace weft

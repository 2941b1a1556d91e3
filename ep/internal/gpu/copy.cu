// Copy: received rows from the handle's memory to the caller's. How many rows there are is known in this
// GPU's memory alone, and the kernel reads it there. It moves the rows that there are, and leaves what
// is between and behind them unchanged.
//
// Rows stand in zones, in each from its front: an expert's, or packed rows, which are one zone.
// Rank-major rows stand in zones of their sources, with gaps where a token has no expert here. Warps
// take pieces of rows in turn, and then scales, a few of some rows at a time, which may change their
// order. The kernel waits for nothing but the kernel before.
#include "describe.cuh"

namespace weft {

// Strides say where a word of scales stands: row x number + zone x number of the zone's first row +
// word x number of the word. Go: strides.
struct Strides {
	u32 row, zone, word;

	__device__ __forceinline__ u64 at(u32 number, u32 first, u32 w) const {
		return (u64)row * number + (u64)zone * first + (u64)word * w;
	}
};

// List is so many words that are copied as they are. Go: list.
struct List {
	const u32 *from;
	u32 *to;
	u32 n, zero;
};

constexpr u32 LISTS = 3;

// Go: copyArgs.
struct Copy {
	Describe described; // to the caller's memory
	u32 zones, zone_rows;
	const int *counts;		// [zones]: rows
	Divisor pieces, shares; // of a row, and of the words of 32 rows' scales; 0 if none are wanted
	u32 row_bytes, scale_words;
	const char *rows;
	char *to_rows;
	const u32 *scales;
	u32 *to_scales;
	Strides from, to; // of scales
	u32 gaps, local;  // zones have some; experts whose rows are padded
	// [local], of those: rows without pads and with them, and the first.
	const int *kept, *padded, *offsets;
	List lists[LISTS];
};

static_assert(sizeof(Copy) == WEFT_COPY_BYTES, "not the size of the host's struct");

// FLIGHT is how many units a piece has, which a warp has on their way at once. A share of scales is
// SHARE words of 32 rows.
constexpr u32 FLIGHT = 4, SHARE = 8, ALL = 0xFFFFFFFFu, NONE = 0xFFFFFFFFu;

// Zones are 32 that follow each other, one to a lane.
struct Zones {
	u32 from;  // the first of them
	u32 end;   // rows up to the lane's last
	u32 total; // rows

	__device__ __forceinline__ Zones(u32 from, u32 count) : from(from), end(count) {
		u32 lane = threadIdx.x & 31;
#pragma unroll
		for (u32 by = 1; by < 32; by *= 2) {
			u32 before = __shfl_up_sync(ALL, end, by);
			if (lane >= by) end += before;
		}
		total = __shfl_sync(ALL, end, 31);
	}

	// row is where the i-th row stands. All lanes ask for the same.
	__device__ __forceinline__ u32 row(const Copy &a, u32 i) const {
		u32 z = __popc(__ballot_sync(ALL, end <= i)), before = __shfl_sync(ALL, end, (z - 1) & 31);
		return (from + z) * a.zone_rows + i - (z == 0 ? 0 : before);
	}

	// each is row, of a row of each lane's own, with the first row of its zone.
	__device__ __forceinline__ u32 each(const Copy &a, u32 i, u32 &first) const {
		u32 z = 0;
#pragma unroll
		for (u32 half = 16; half > 0; half /= 2) {
			if (__shfl_sync(ALL, end, z + half - 1) <= i) z += half;
		}
		u32 before = __shfl_sync(ALL, end, (z - 1) & 31);
		first = (from + z) * a.zone_rows;
		return first + i - (z == 0 ? 0 : before);
	}
};

// copy_row moves a piece of a row. In a gap it reads what is there, and leaves it: the load need
// not wait to be told.
__device__ __forceinline__ void copy_row(const Copy &a, const Zones &z, u32 item) {
	u32 piece, i = a.pieces.quotient(item, piece), row = z.row(a, i), lane = threadIdx.x & 31,
			   at = piece * FLIGHT * UNIT + lane * 16;
	const char *from = a.rows + (u64)row * a.row_bytes;
	char *to = a.to_rows + (u64)row * a.row_bytes;
	uint4 v[FLIGHT];
#pragma unroll
	for (u32 j = 0; j < FLIGHT; j++) {
		if (at + j * UNIT < a.row_bytes) v[j] = load_once(from + at + j * UNIT);
	}
	if (a.gaps != 0) {
		u32 k = a.described.shape.topk;
		bool here = lane < k && a.described.recv_rows[(u64)row * k + lane].target != 0;
		if (!__any_sync(ALL, here)) return;
	}
#pragma unroll
	for (u32 j = 0; j < FLIGHT; j++) {
		if (at + j * UNIT < a.row_bytes) store16(to + at + j * UNIT, v[j]);
	}
}

// Word is a word of a share that a lane moves; none has no row.
struct Word {
	u32 row, first, word;
};

// word_of is the lane's j-th. What lies together where it goes belongs to lanes side by side.
__device__ __forceinline__ Word word_of(const Copy &a, u32 row, u32 first, u32 share, u32 j) {
	u32 lane = threadIdx.x & 31, k = 32 * j + lane, of = a.to.word == 1 ? k / SHARE : lane,
		word = share * SHARE + (a.to.word == 1 ? k % SHARE : j);
	Word w = {__shfl_sync(ALL, row, of), __shfl_sync(ALL, first, of), word};
	if (word >= a.scale_words) w.row = NONE;
	return w;
}

// copy_scales moves a share: words of up to 32 rows.
__device__ __forceinline__ void copy_scales(const Copy &a, const Zones &z, u32 item) {
	u32 share, lane = threadIdx.x & 31, i = 32 * a.shares.quotient(item, share) + lane, first,
			   row = z.each(a, i, first), v[SHARE];
	if (i >= z.total || (a.gaps != 0 && !has_row(a.described, row))) row = NONE;
#pragma unroll
	for (u32 j = 0; j < SHARE; j++) {
		Word w = word_of(a, row, first, share, j);
		if (w.row != NONE) v[j] = a.scales[a.from.at(w.row, w.first, w.word)];
	}
#pragma unroll
	for (u32 j = 0; j < SHARE; j++) {
		Word w = word_of(a, row, first, share, j);
		if (w.row != NONE) a.to_scales[a.to.at(w.row, w.first, w.word)] = v[j];
	}
}

// describe_pads says of pads that they hold no token. A warp takes an expert's.
__device__ __forceinline__ void describe_pads(const Copy &a, u32 warp, u32 warps) {
	const Describe &d = a.described;
	for (u32 e = warp; e < a.local; e += warps) {
		int first = a.offsets[e], end = min(a.padded[e], (int)d.rows - first);
		for (int i = a.kept[e] + (int)(threadIdx.x & 31); i < end; i += 32) {
			if (d.tokens != nullptr) d.tokens[first + i] = -1;
			if (d.sources != nullptr) d.sources[first + i] = -1;
			if (d.weights != nullptr) d.weights[first + i] = 0;
		}
	}
}

} // namespace weft

namespace weft::ep {

__global__ void __launch_bounds__(512) copy(const __grid_constant__ Copy a) {
	wait_for_previous();
	u32 lane = threadIdx.x & 31, step = gridDim.x * (blockDim.x / 32), warp = threadIdx.x / 32 * gridDim.x + blockIdx.x,
		item = warp;
	u32 count = lane < a.zones ? (u32)a.counts[lane] : 0;
	for (u32 from = 0; from < a.zones; from += 32) {
		Zones z(from, min(count, a.zone_rows));
		count = from + 32 + lane < a.zones ? (u32)a.counts[from + 32 + lane] : 0; // is on its way meanwhile
		u32 pieces = z.total * a.pieces.by, items = pieces + (z.total + 31) / 32 * a.shares.by;
		for (; item < pieces; item += step) copy_row(a, z, item);
		for (; item < items; item += step) copy_scales(a, z, item - pieces);
		item -= items; // turns go on where these zones end
	}
#pragma unroll
	for (u32 l = 0; l < LISTS; l++) {
		for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.lists[l].n; i += gridDim.x * blockDim.x)
			a.lists[l].to[i] = a.lists[l].from[i];
	}
	describe(a.described);
	describe_pads(a, warp, step);
}

} // namespace weft::ep

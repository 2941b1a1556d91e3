// Rows of tokens that go to several GPUs, as a dispatch moves them when it is known where they go: by bulk copies,
// each row read once for all its destinations. Nothing is routed and nothing awaited. Hopper and later.
#include "pattern.cuh"
#include "walk.cuh"

#if __CUDA_ARCH__ >= 900

constexpr u32 MOST_WARPS = 16, MOST_STAGES = 3, MOST_TARGETS = 8;
constexpr u32 NOWHERE = 0xFFFFFFFFu;

// Go: rows.
struct Rows {
	const char *x;	// [tokens][bytes]
	const u32 *to;	// [tokens][MOST_TARGETS]: a GPU << 24 and a row there, in the order in which they are taken; NOWHERE
	const u32 *own; // [tokens]: the row here, or NOWHERE, where the warps that carry none store it; or null
	u32 tokens, bytes;
	u32 parts, chunk;  // of a row, and bytes of each
	u32 warps, stages; // warps that carry, and parts in the shared memory of each
	Targets targets;   // where the rows from this GPU begin
};

// store_own stores the share's own rows by ordinary stores. So many warps do.
__device__ __forceinline__ void store_own(const Rows &a, Share share, u32 warp, u32 warps, u32 lane, char *to) {
	constexpr u32 UNITS = 4; // in flight
	for (u32 t = share.from + warp; t < share.to; t += warps) {
		u32 row = a.own[t];
		if (row == NOWHERE) continue;
		for (u32 at = lane * 16; at < a.bytes; at += UNITS * 512) {
			uint4 v[UNITS];
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				if (at + u * 512 < a.bytes) v[u] = load_once(a.x + (u64)t * a.bytes + at + u * 512);
			}
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				if (at + u * 512 < a.bytes) store16(to + (u64)row * a.bytes + at + u * 512, v[u]);
			}
		}
	}
}

// link_rows moves the rows. A warp that carries loads a part while the stores of the part before it read shared memory,
// if it has more than one stage. Its waits end as loads do.
extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS) link_rows(const __grid_constant__ Rows a, u32 rank) {
	extern __shared__ __align__(128) char shared[];
	__shared__ u64 arrived[MOST_WARPS * MOST_STAGES];
	u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
	Share share(a.tokens);
	if (warp >= a.warps) {
		if (a.own != nullptr) store_own(a, share, warp - a.warps, warps - a.warps, lane, a.targets.at[rank]);
		return;
	}
	if (lane != 0) return;
	u64 *barriers = arrived + warp * MOST_STAGES;
	char *stages = shared + warp * a.stages * a.chunk;
	for (u32 s = 0; s < a.stages; s++) barrier_init(barriers + s, 1);
	fence_barrier_init();

	u32 n = (share.to - share.from) * a.parts, fetched = warp, free = 0, stage = 0, parities = 0;
	auto next = [&](u32 s) { return s + 1 == a.stages ? 0 : s + 1; };
	auto fetch = [&] {
		if (fetched >= n) return;
		u32 t = share.from + fetched / a.parts, from = fetched % a.parts * a.chunk, size = min(a.chunk, a.bytes - from);
		barrier_expect(barriers + free, size);
		bulk_load(stages + free * a.chunk, a.x + (u64)t * a.bytes + from, size, barriers + free);
		fetched += a.warps;
		free = next(free);
	};
	if (a.stages > 1) fetch();
	for (u32 i = warp; i < n; i += a.warps) {
		// The stage that is loaded next was stored from in the step before this one, or of three in the one before that.
		if (a.stages > 2) {
			bulk_wait_read_before();
		} else {
			bulk_wait_read();
		}
		fetch();
		u32 t = share.from + i / a.parts, from = i % a.parts * a.chunk, size = min(a.chunk, a.bytes - from);
		const uint4 *list = (const uint4 *)(a.to + (u64)t * MOST_TARGETS);
		uint4 first = list[0], second = list[1];
		u32 to[MOST_TARGETS] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
		while (!barrier_awaited(barriers + stage, parities >> stage & 1)) {
		}
		parities ^= 1u << stage;
#pragma unroll
		for (u32 k = 0; k < MOST_TARGETS; k++) {
			if (to[k] == NOWHERE) continue;
			bulk_store(a.targets.at[to[k] >> 24] + (u64)(to[k] & 0xFFFFFF) * a.bytes + from, stages + stage * a.chunk, size);
		}
		bulk_commit();
		stage = next(stage);
	}
	bulk_wait();
}

// link_rows_check adds to wrong how many words of a sender's rows are wrong. tokens says of which token each is.
extern "C" __global__ void link_rows_check(const char *from, const u32 *tokens, u32 rows, u32 bytes, u32 seed,
										   u64 *wrong) {
	u32 bad = 0, pieces = bytes / 16;
	for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
		for (u32 i = threadIdx.x; i < pieces; i += blockDim.x) {
			uint4 want = words_at(seed, (u64)tokens[row] * pieces + i);
			uint4 got = load_relaxed_sys16(from + ((u64)row * pieces + i) * 16);
			bad += (got.x != want.x) + (got.y != want.y) + (got.z != want.z) + (got.w != want.w);
		}
	}
	__syncwarp();
	add_up(wrong, bad);
}

#endif

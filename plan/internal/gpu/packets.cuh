// Packets: each has 4 bytes of data and a flag of 4, and a thread moves four of them together, which are a vector.
//
// Ordering: a packet is whole in each 8 bytes that are stored together, so its flag says that its data is there. The
// flag is that of the launch, so packets of other launches are none.
#pragma once
#include "program.cuh"

namespace weft {

namespace plan {

// flag_of is the flag of a launch's packets: never 0, which is what nobody has written.
__device__ __forceinline__ u32 flag_of(u64 epoch) {
	u64 n = (epoch >> 32) + (u32)epoch; // epoch modulo 2^32 - 1, but for the last steps
	n = (n >> 32) + (u32)n;
	return n >= 0xFFFFFFFFu ? 1 : (u32)n + 1;
}

// Packet is a vector of packets: a word of data and a flag in each 8 bytes.
struct Packet {
	ulonglong2 low, high;

	// none is there, and has no data.
	__device__ __forceinline__ static Packet none(u32 flag) {
		u64 up = (u64)flag << 32;
		return {{up, up}, {up, up}};
	}
	// there has no branches: a thread looks at several packets, and most of the time all are there or none.
	__device__ __forceinline__ bool there(u32 flag) const {
		return (((u32)(low.x >> 32) ^ flag) | ((u32)(low.y >> 32) ^ flag) | ((u32)(high.x >> 32) ^ flag) |
				((u32)(high.y >> 32) ^ flag)) == 0;
	}
	__device__ __forceinline__ uint4 value() const {
		return make_uint4((u32)low.x, (u32)low.y, (u32)high.x, (u32)high.y);
	}
};

__device__ __forceinline__ Packet look(const char *p) {
	return {load_relaxed_sys_u64x2(p), load_relaxed_sys_u64x2(p + 16)};
}

// look_slowly looks at `words` packets of a vector, which may be fewer than four. What is not there is.
__device__ __noinline__ Packet look_slowly(const char *p, u32 words, u32 flag) {
	u64 w[4];
	for (u32 i = 0; i < 4; i++) w[i] = i < words ? load_relaxed_sys_u64(p + 8 * i) : (u64)flag << 32;
	return {{w[0], w[1]}, {w[2], w[3]}};
}

__device__ __forceinline__ void send(char *p, u32 flag, uint4 v) {
	u64 up = (u64)flag << 32;
	store_relaxed_sys_u64x2(p, {up | v.x, up | v.y});
	store_relaxed_sys_u64x2(p + 16, {up | v.z, up | v.w});
}

__device__ __noinline__ void send_slowly(char *p, u32 words, u32 flag, uint4 v) {
	u64 up = (u64)flag << 32;
	u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		if (i < words) store_relaxed_sys_u64(p + 8 * i, up | w[i]);
	}
}

// poll looks until vectors of packets are there, at a place behind each of so many addresses. False: the wait is over.
// It is a function of its own, and loops that call it have left off: what is live across a call costs registers where
// nothing waits. Sources that are operations of their own have sites that follow each other: step is 1 then, and
// else 0.
__device__ __noinline__ bool poll(const Group &g, State *state, u32 site, u32 step, u64 epoch, const u32 *writers,
								  u32 flag, const u64 *sources, u32 count, u64 place, u32 words) {
	for (u32 k = 0; k < count; k++) {
		Wait w(g, state, site + step * k, epoch);
		for (u32 i = 0; i < words; i++) {
			const char *p = (const char *)sources[k] + place + 8 * i;
			u64 v = load_relaxed_sys_u64(p);
			while ((u32)(v >> 32) != flag && w.more(writers[k], flag, v >> 32)) v = load_relaxed_sys_u64(p);
			if (w.over) return false;
		}
	}
	return true;
}

} // namespace plan
} // namespace weft

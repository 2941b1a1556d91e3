// Values that are their own flags. A word of ones, which is a NaN in every float type, stands for
// "not there yet" and is never sent: clean makes it 0x7FFFFFFF, another NaN. The receiver puts
// words of ones where the next value will come. A value needs no fence: each of its words shows by
// itself that it has arrived.
#pragma once
#include "wait.cuh"

namespace weft {

constexpr u32 EMPTY = 0xFFFFFFFFu;

__device__ __forceinline__ u32 clean(u32 w) { return w == EMPTY ? 0x7FFFFFFFu : w; }
__device__ __forceinline__ uint4 clean(uint4 v) { return make_uint4(clean(v.x), clean(v.y), clean(v.z), clean(v.w)); }
__device__ __forceinline__ bool full(uint2 v) { return v.x != EMPTY && v.y != EMPTY; }
__device__ __forceinline__ bool full(uint4 v) { return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY; }
__device__ __forceinline__ uint4 empty16() { return make_uint4(EMPTY, EMPTY, EMPTY, EMPTY); }

// await4, await8 and await16 wait for a value of peer's.
__device__ __forceinline__ u32 await4(Wait &w, u32 peer, const void *p) {
	u32 v = load_relaxed_sys4(p);
	while (v == EMPTY && !w.over && w.more(peer, 0, v)) v = load_relaxed_sys4(p);
	return v;
}

__device__ __forceinline__ uint2 await8(Wait &w, u32 peer, const void *p) {
	uint2 v = load_relaxed_sys8(p);
	while (!full(v) && !w.over && w.more(peer, 0, v.x)) v = load_relaxed_sys8(p);
	return v;
}

__device__ __forceinline__ uint4 await16(Wait &w, u32 peer, const void *p) {
	uint4 v = load_relaxed_sys16(p);
	while (!full(v) && !w.over && w.more(peer, 0, v.w)) v = load_relaxed_sys16(p);
	return v;
}

} // namespace weft

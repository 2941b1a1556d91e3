// Encodings: how a vector stands in a slot of SLOT_BYTES, and how a receiver sees that it is there.
//
//	words    a word of ones is "not there yet"; a word of ones that is sent becomes 0x7FFFFFFF (both are NaNs)
//	doubles  the same with words of 64 bits, for fp64, whose halves may be ones
//	pairs    any bytes: each 4 bytes of data travel with a word of zeros, in one access of 8 bytes
//
// An encoding has send, look, there and value. Side words serve moves, which keep all bits (WEFT_EXACT): where a vector
// arrives with a word 0x7FFFFFFF, its side word says which of its words were ones. The window has a side word for each
// slot, ones as long as it says nothing. The receiver waits for it, and makes it ones again at once. Few vectors
// have such a word; of the others the sender and the receiver compare the largest word.
//
// Ordering: each access of a slot is relaxed. A part of a vector that arrives whole (a word, a double, a pair) shows by
// itself that it is there, so nothing has to order the parts.
#pragma once
#include "lane.cuh"

namespace weft {

#if WEFT_ENCODING == 1

constexpr u32 SLOT_BYTES = 16;
typedef uint4 Slot;

__device__ __forceinline__ void send(char *slot, uint4 v) { store_relaxed_sys16(slot, clean(v)); }
__device__ __forceinline__ Slot look(const char *slot) { return load_relaxed_sys16(slot); }
// A maximum of words is EMPTY if one of them is.
__device__ __forceinline__ bool there(const Slot &s) { return max(max(s.x, s.y), max(s.z, s.w)) != EMPTY; }
__device__ __forceinline__ uint4 value(const Slot &s) { return s; }
// most is the largest word of a vector as it travels, as a signed number. It is MOST if some word is 0x7FFFFFFF: a word
// that was ones, or one that was 0x7FFFFFFF before.
typedef int Most;
constexpr Most MOST = 0x7FFFFFFF;
__device__ __forceinline__ Most most(uint4 v) { return max(max((int)v.x, (int)v.y), max((int)v.z, (int)v.w)); }
__device__ __forceinline__ uint4 as_sent(uint4 v) { return clean(v); }
// ones_of says which words of a vector are ones, a bit each; with_ones makes such words of it ones again.
__device__ __forceinline__ u32 ones_of(uint4 v) {
	return (u32)(v.x == EMPTY) | (u32)(v.y == EMPTY) << 1 | (u32)(v.z == EMPTY) << 2 | (u32)(v.w == EMPTY) << 3;
}
__device__ __forceinline__ uint4 with_ones(uint4 v, u32 ones) {
	return make_uint4(v.x | ones << 31, v.y | ones >> 1 << 31, v.z | ones >> 2 << 31, v.w | ones >> 3 << 31);
}

#elif WEFT_ENCODING == 2

constexpr u32 SLOT_BYTES = 16;
typedef ulonglong2 Slot;

__device__ __forceinline__ u64 clean64(u64 w) { return w == ~0ull ? ~0ull >> 1 : w; }
__device__ __forceinline__ void send(char *slot, uint4 v) {
	store_relaxed_sys_u64x2(slot, {clean64((u64)v.y << 32 | v.x), clean64((u64)v.w << 32 | v.z)});
}
__device__ __forceinline__ Slot look(const char *slot) { return load_relaxed_sys_u64x2(slot); }
__device__ __forceinline__ bool there(const Slot &s) { return s.x != ~0ull && s.y != ~0ull; }
__device__ __forceinline__ uint4 value(const Slot &s) {
	return make_uint4((u32)s.x, (u32)(s.x >> 32), (u32)s.y, (u32)(s.y >> 32));
}
typedef long long Most;
constexpr Most MOST = 0x7FFFFFFFFFFFFFFF;
__device__ __forceinline__ Most most(uint4 v) {
	return max((long long)((u64)v.y << 32 | v.x), (long long)((u64)v.w << 32 | v.z));
}
__device__ __forceinline__ uint4 as_sent(uint4 v) {
	u64 low = clean64((u64)v.y << 32 | v.x), high = clean64((u64)v.w << 32 | v.z);
	return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}
__device__ __forceinline__ u32 ones_of(uint4 v) {
	return (u32)((v.x & v.y) == EMPTY) | (u32)((v.z & v.w) == EMPTY) << 1;
}
__device__ __forceinline__ uint4 with_ones(uint4 v, u32 ones) {
	return make_uint4(v.x, v.y | ones << 31, v.z, v.w | ones >> 1 << 31);
}

#else

constexpr u32 SLOT_BYTES = 32;
struct Slot {
	ulonglong2 low, high;
};

__device__ __forceinline__ void send(char *slot, uint4 v) {
	store_relaxed_sys_u64x2(slot, {v.x, v.y});
	store_relaxed_sys_u64x2(slot + 16, {v.z, v.w});
}
__device__ __forceinline__ Slot look(const char *slot) {
	return {load_relaxed_sys_u64x2(slot), load_relaxed_sys_u64x2(slot + 16)};
}
__device__ __forceinline__ bool there(const Slot &s) {
	return (s.low.x >> 32 | s.low.y >> 32 | s.high.x >> 32 | s.high.y >> 32) == 0;
}
__device__ __forceinline__ uint4 value(const Slot &s) {
	return make_uint4((u32)s.low.x, (u32)s.low.y, (u32)s.high.x, (u32)s.high.y);
}

#endif

// poll looks at a slot until a vector of peer's is there, or the wait is over. It is not inlined, as poll_begun is not:
// a kernel waits in many places, and is faster with fewer instructions.
__device__ __noinline__ Slot poll(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *slot) {
	Wait w(g, state, op, epoch);
	Slot s = look(slot);
	while (!there(s) && w.more(peer, 0, 0)) s = look(slot);
	return s;
}

// await waits until a vector of peer's is in a slot that has been looked at, and gives it.
__device__ __forceinline__ uint4 await(Wait &w, u32 peer, const char *slot, Slot s) {
	if (!there(s) && !w.over) {
		s = poll(w.group, w.state, w.op, w.epoch, peer, slot);
		w.over = !there(s);
	}
	return value(s);
}

#if WEFT_EXACT && WEFT_ENCODING != 3

// side_of is where a slot's side word stands, in a window.
__device__ __forceinline__ u64 side_of(const Lane &l, u64 slot) { return l.sides + (slot - l.slots) / 4; }

__device__ __noinline__ void send_side(char *side, uint4 v) { store_relaxed_sys4(side, ones_of(v)); }

// await_side waits for a side word, gives it, and makes it ones again. EMPTY: the wait is over.
__device__ __noinline__ u32 await_side(const Group &g, State *state, u32 op, u64 epoch, u32 peer, char *side) {
	Wait w(g, state, op, epoch);
	u32 ones = await4(w, peer, side);
	if (ones != EMPTY) store_relaxed_sys4(side, EMPTY);
	return ones;
}

// deliver sends a vector to a slot in a window, with its side word if it has one.
__device__ __forceinline__ void deliver(const Lane &l, char *window, u64 slot, uint4 v) {
	send(window + slot, v);
	if (__builtin_expect(most(as_sent(v)) == MOST, 0)) send_side(window + side_of(l, slot), v);
}

// restore gives v, which peer sent to this slot, the bits that it had before send. False: the wait is over.
__device__ __forceinline__ bool restore(const Group &g, const Lane &l, u64 epoch, u32 peer, const char *slot,
										uint4 &v) {
	if (__builtin_expect(most(v) != MOST, 1)) return true;
	u32 ones = await_side(g, l.state, l.op, epoch, peer, l.own + side_of(l, (u64)(slot - l.own)));
	if (ones == EMPTY) return false;
	v = with_ones(v, ones);
	return true;
}

#else

__device__ __forceinline__ void deliver(const Lane &, char *window, u64 slot, uint4 v) { send(window + slot, v); }
__device__ __forceinline__ bool restore(const Group &, const Lane &, u64, u32, const char *, uint4 &) { return true; }

#endif

// empty makes a slot ones.
__device__ __forceinline__ void empty(const Lane &l, char *slot) {
#pragma unroll
	for (u32 i = 0; i < SLOT_BYTES; i += 16) store16(slot + (l.cleared - l.slots) + i, empty16());
}

} // namespace weft

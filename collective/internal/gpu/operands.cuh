// Operands: the caller's memory, of any alignment and length, as vectors of 16 bytes of which the last may be shorter.
#pragma once
#include "flags.cuh"
#include "unaligned.cuh"

namespace weft {

// Operand is memory of the caller's, of any alignment. Go: operand.
struct Operand {
	char *at;
	u64 bytes;
	u32 unit; // its address, and where its parts begin, are multiples of this: 1, 2, 4, 8 or 16
	u32 zero;
};

// Span is a part of an operand, in elements. Go: span.
struct Span {
	u64 from, count;
};

// MOST_RANKS is how many ranks a parameter has room for, whatever domain the kernel is compiled for. Go:
// device.MaxRanks.
constexpr u32 MOST_RANKS = 72;

// Part is a part of an operand, as vectors of 16 bytes of which the last may be shorter.
struct Part {
	char *at;
	u64 bytes;
	u32 unit;

	__device__ __forceinline__ Part(const Operand &o) : at(o.at), bytes(o.bytes), unit(o.unit) {}
	__device__ __forceinline__ Part(const Operand &o, u64 from, u64 bytes) : at(o.at + from), bytes(bytes), unit(o.unit) {}

	// This one is of any address.
	__device__ __forceinline__ Part(char *at, u64 bytes) : at(at), bytes(bytes), unit(greatest_unit((u32)(u64)at | 16)) {}

	__device__ __forceinline__ u32 vectors() const { return (u32)((bytes + 15) / 16); }
	// whole: it is whole vectors of aligned memory.
	__device__ __forceinline__ bool whole() const { return unit == 16 && bytes % 16 == 0; }
	__device__ __forceinline__ uint4 load(u64 i) const {
		u64 rest = bytes - i * 16;
		if (__builtin_expect(unit == 16 && rest >= 16, 1)) return load_once(at + i * 16);
		u32 n = rest >= 16 ? 16 : (u32)rest;
		return load_slowly(at + i * 16, n, min(unit, greatest_unit(n)));
	}
	__device__ __forceinline__ void store(u64 i, uint4 v) const {
		u64 rest = bytes - i * 16;
		if (__builtin_expect(unit == 16 && rest >= 16, 1)) return store16(at + i * 16, v);
		u32 n = rest >= 16 ? 16 : (u32)rest;
		store_slowly(at + i * 16, n, min(unit, greatest_unit(n)), v);
	}
};

// fly moves up to N vectors of a thread: vector i, and every step-th after it that comes before end. It loads all of
// them, by load(vector), before it stores the first, by store(vector, data): all loads are in flight together.
template <u32 N, class L, class S>
__device__ __forceinline__ void fly(u32 i, u32 step, u32 end, L load, S store) {
	uint4 v[N];
#pragma unroll
	for (u32 j = 0; j < N; j++) {
		if (i + j * step < end) v[j] = load(i + j * step);
	}
#pragma unroll
	for (u32 j = 0; j < N; j++) {
		if (i + j * step < end) store(i + j * step, v[j]);
	}
}

constexpr u32 FLYING = 4; // vectors of a thread, where nothing is encoded

} // namespace weft

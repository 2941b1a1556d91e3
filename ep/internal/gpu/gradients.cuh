// What the parts of gradients share: the arguments, products of two rows, and which rows a token has here.
//
// A dot product adds element i to lane i mod 64, fused, i ascending, and then the lanes as a tree, on
// every engine.
#pragma once
#include "scalars.cuh"
#include "sum.cuh"

namespace weft {

// Go: gradientArgs.
struct Gradients {
	Shape shape;
	State *state;
	u64 openings, marks; // offsets in a window
	u32 first;			 // the lane's first count
	u32 flags, tokens;
	u32 at; // where the tokens' gradients begin in this rank's window, in 16 bytes
	u32 row_bytes, align, call, zero;
	// BULK: bytes of a row that a warp moves at a time, of which shared memory has some for each of
	// so many warps
	u32 chunk, carriers;
	// of rows that are multiplied: bytes of a part of some of a token's and of its gradient, of
	// which shared memory has DEPTH for each of so many warps
	u32 room, multipliers;
	const Pair *home;
	int *described;
	const char *y;
	char *rows;
	Scalars scalars;
	Group group;
};

static_assert(sizeof(Gradients) == WEFT_GRADIENT_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 MOST_WARPS = 16, ROWS_AT_ONCE = 4, UNITS = 4; // of a row, on their way at once

#if WEFT_TYPE == 3
typedef float Element;
#else
typedef u16 Element;
#endif
constexpr u32 ELEMENTS = UNIT / sizeof(Element); // of a unit

__device__ __forceinline__ float wide(Element e) {
#if WEFT_TYPE == 1
	return number((u32)e << 16);
#elif WEFT_TYPE == 2
	return from_f16(e);
#else
	return e;
#endif
}

// Staged is a unit of two rows, in the order of their elements.
struct Staged {
	uint4 grad[32], row[32];
};

// Dot is a product under way: the lanes j and 32 + j of it.
struct Dot {
	float low, high;

	__device__ __forceinline__ void take(const Staged &s, u32 elements, u32 lane) {
		const Element *x = (const Element *)s.grad, *y = (const Element *)s.row;
#pragma unroll
		for (u32 i = 0; i < ELEMENTS; i += 64) {
			if (i + lane < elements) low = fused(wide(x[i + lane]), wide(y[i + lane]), low);
			if (i + 32 + lane < elements) high = fused(wide(x[i + 32 + lane]), wide(y[i + 32 + lane]), high);
		}
	}

	// sum is right on the first lane.
	__device__ __forceinline__ float sum() const {
		float s = add(low, high);
#pragma unroll
		for (u32 h = 16; h > 0; h /= 2) s = add(s, __shfl_down_sync(0xFFFFFFFFu, s, h));
		return s != s ? number(0x7FFFFFFF) : s;
	}
};

__device__ __forceinline__ uint4 times(const Sum &s, float weight) {
	Sum product;
#pragma unroll
	for (int i = 0; i < NUMBERS; i++) product.f[i] = multiply(s.f[i], weight);
	return product.round();
}

__device__ __forceinline__ uint4 scaled(const Gradients &a, uint4 v, float weight) {
	if ((a.flags & WEIGHTED) == 0) return v;
	Sum s;
	s.start(v);
	return times(s, weight);
}

// Arrived is what the lane knows of a token that is here: its selection, and the row + 1 that it
// has, or on the first lane the token.
struct Arrived {
	Pair p;
	u32 at; // recv_tokens

	__device__ __forceinline__ Arrived(const Gradients &a, u64 slot, u32 lane) : p{0, 0}, at(0) {
		if (lane < a.shape.topk) p = a.scalars.recv_rows[slot * a.shape.topk + lane];
		if (a.scalars.recv_tokens != nullptr && lane == 0) at = a.scalars.recv_tokens[slot];
	}

	__device__ __forceinline__ u32 row(const Gradients &a, u64 slot, u32 lane) const {
		if ((a.flags & ROW_PER_SELECTION) != 0) return p.target;
		if (!__any_sync(0xFFFFFFFFu, p.target != 0) || lane != 0) return 0;
		return a.scalars.recv_tokens != nullptr ? at : (u32)slot + 1;
	}
};

} // namespace weft

// Reductions of 16 bytes of elements, in the order of the calls, rounded once at the end: the rule of
// package simd, bit for bit.
//
//	floats    fp32 accumulators, fp64 for fp64; one rounding to nearest even; e4m3 and e5m2 saturate; a
//	          NaN is the positive one with all mantissa bits set
//	integers  sums and products wrap; an average divides the exact sum, truncated toward zero
//	bool      a byte, true if it is not 0: sum and max are OR, prod and min AND
//
// WEFT_TYPE is the elements' type: the number of the weft.DType.
#pragma once
#include "ops.cuh"
#include "ptx.cuh"

#ifndef WEFT_TYPE
#define WEFT_TYPE 1
#endif
#define TYPE_BF16 1
#define TYPE_F16 2
#define TYPE_F32 3
#define TYPE_F64 4
#define TYPE_E4M3 5
#define TYPE_E5M2 6
#define TYPE_I8 8
#define TYPE_I16 9
#define TYPE_I32 10
#define TYPE_I64 11
#define TYPE_U8 12
#define TYPE_U16 13
#define TYPE_U32 14
#define TYPE_U64 15
#define TYPE_BOOL 16

namespace weft {

__device__ constexpr u32 element_bytes(u32 type) {
	if (type == TYPE_BF16 || type == TYPE_F16 || type == TYPE_I16 || type == TYPE_U16) return 2;
	if (type == TYPE_F32 || type == TYPE_I32 || type == TYPE_U32) return 4;
	return type == TYPE_F64 || type == TYPE_I64 || type == TYPE_U64 ? 8 : 1;
}
constexpr u32 ELEMENT_BYTES = element_bytes(WEFT_TYPE);
constexpr u32 ELEMENTS = 16 / ELEMENT_BYTES; // of a vector

// Scalar has the bits of what PRE_MUL_SUM multiplies by: fp32 where elements are narrower floats, else an element.
#if WEFT_TYPE == TYPE_F64 || WEFT_TYPE == TYPE_I64 || WEFT_TYPE == TYPE_U64
typedef u64 Scalar;
#elif WEFT_TYPE == TYPE_I16 || WEFT_TYPE == TYPE_U16
typedef u16 Scalar;
#elif WEFT_TYPE == TYPE_I8 || WEFT_TYPE == TYPE_U8 || WEFT_TYPE == TYPE_BOOL
typedef u8 Scalar;
#else
typedef u32 Scalar;
#endif

// How is what a reduction needs beside the rows. Go: reduction.
struct How {
	u32 op, zero;
	// What PRE_MUL_SUM multiplies by, or, if at is not null, where in this GPU's memory it stands.
	u64 scalar;
	const Scalar *at;
};

// ---- Accumulators. A type A has the operators; unpack and pack are the elements' own.

#if WEFT_TYPE <= TYPE_E5M2 && WEFT_TYPE != TYPE_F64

typedef float Accumulator;

__device__ __forceinline__ float not_a_number() { return number(0x7FFFFFFFu); }
__device__ __forceinline__ float from_scalar(u64 s) { return number((u32)s); }
__device__ __forceinline__ float plus(float a, float b) { return add(a, b); }
__device__ __forceinline__ float times(float a, float b) { return multiply(a, b); }
__device__ __forceinline__ float times_plus(float a, float b, float c) { return fused(a, b, c); }
__device__ __forceinline__ float over(float a, u32 n) { return divide(a, (float)n); }

// lesser and greater order -0 below +0, and give NaN for any NaN.
__device__ __forceinline__ float lesser(float a, float b) {
	if (a != a || b != b) return not_a_number();
	if (a == b) return number(bits(a) | bits(b));
	return a < b ? a : b;
}
__device__ __forceinline__ float greater(float a, float b) {
	if (a != a || b != b) return not_a_number();
	if (a == b) return number(bits(a) & bits(b));
	return a > b ? a : b;
}

#elif WEFT_TYPE == TYPE_F64

typedef double Accumulator;

__device__ __forceinline__ double not_a_number() { return number64(0x7FFFFFFFFFFFFFFFull); }
__device__ __forceinline__ double from_scalar(u64 s) { return number64(s); }
__device__ __forceinline__ double plus(double a, double b) { return add64(a, b); }
__device__ __forceinline__ double times(double a, double b) { return multiply64(a, b); }
__device__ __forceinline__ double times_plus(double a, double b, double c) { return fused64(a, b, c); }
__device__ __forceinline__ double over(double a, u32 n) { return divide64(a, (double)n); }
__device__ __forceinline__ double lesser(double a, double b) {
	if (a != a || b != b) return not_a_number();
	if (a == b) return number64(bits64(a) | bits64(b));
	return a < b ? a : b;
}
__device__ __forceinline__ double greater(double a, double b) {
	if (a != a || b != b) return not_a_number();
	if (a == b) return number64(bits64(a) & bits64(b));
	return a > b ? a : b;
}

#else

// An accumulator of integers is so wide that the sum of a domain's ranks is exact, but for 64 bits,
// which have Carry for it. What is too wide for the element is cut off when it is packed.
#if WEFT_TYPE == TYPE_I8 || WEFT_TYPE == TYPE_I16
typedef int Accumulator;
#elif WEFT_TYPE == TYPE_U8 || WEFT_TYPE == TYPE_U16 || WEFT_TYPE == TYPE_BOOL
typedef u32 Accumulator;
#elif WEFT_TYPE == TYPE_I32 || WEFT_TYPE == TYPE_I64
typedef long long Accumulator;
#else
typedef u64 Accumulator;
#endif

__device__ __forceinline__ Accumulator from_scalar(u64 s) { return (Accumulator)s; }
__device__ __forceinline__ Accumulator plus(Accumulator a, Accumulator b) { return (Accumulator)((u64)a + (u64)b); }
__device__ __forceinline__ Accumulator times(Accumulator a, Accumulator b) { return (Accumulator)((u64)a * (u64)b); }
__device__ __forceinline__ Accumulator times_plus(Accumulator a, Accumulator b, Accumulator c) {
	return plus(times(a, b), c);
}
__device__ __forceinline__ Accumulator over(Accumulator a, u32 n) { return a / (Accumulator)n; }
__device__ __forceinline__ Accumulator lesser(Accumulator a, Accumulator b) { return a < b ? a : b; }
__device__ __forceinline__ Accumulator greater(Accumulator a, Accumulator b) { return a > b ? a : b; }

#endif

// ---- Elements.

// widen_e4m3 scales the number by 2^120, which makes an e4m3's exponent an fp32's, subnormals too.
__device__ __forceinline__ float widen_e4m3(u32 b) {
	float magnitude = multiply(number((b & 0x7F) << 20), 0x1p120f);
	if ((b & 0x7F) == 0x7F) magnitude = number(0x7FFFFFFFu);
	return number(bits(magnitude) | (b & 0x80) << 24);
}

__device__ __forceinline__ void unpack(Accumulator *x, uint4 v) {
	u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (u32 i = 0; i < ELEMENTS; i++) {
#if WEFT_TYPE != TYPE_F64 && WEFT_TYPE != TYPE_I64 && WEFT_TYPE != TYPE_U64
		u32 element = w[i * ELEMENT_BYTES / 4] >> i * ELEMENT_BYTES % 4 * 8; // at the lower end
#endif
#if WEFT_TYPE == TYPE_BF16
		x[i] = number(element << 16);
#elif WEFT_TYPE == TYPE_F16
		x[i] = from_f16((u16)element);
#elif WEFT_TYPE == TYPE_F32
		x[i] = number(element);
#elif WEFT_TYPE == TYPE_F64
		x[i] = number64((u64)w[2 * i + 1] << 32 | w[2 * i]);
#elif WEFT_TYPE == TYPE_E4M3
		x[i] = widen_e4m3(element & 0xFF);
#elif WEFT_TYPE == TYPE_E5M2
		x[i] = from_f16((u16)(element << 8)); // an e5m2 is the upper half of an fp16
#elif WEFT_TYPE == TYPE_I8
		x[i] = (signed char)element;
#elif WEFT_TYPE == TYPE_U8
		x[i] = (u8)element;
#elif WEFT_TYPE == TYPE_BOOL
		x[i] = (u8)element != 0;
#elif WEFT_TYPE == TYPE_I16
		x[i] = (short)element;
#elif WEFT_TYPE == TYPE_U16
		x[i] = (u16)element;
#elif WEFT_TYPE == TYPE_I32
		x[i] = (int)element;
#elif WEFT_TYPE == TYPE_U32
		x[i] = element;
#else
		x[i] = (Accumulator)((u64)w[2 * i + 1] << 32 | w[2 * i]);
#endif
	}
}

__device__ __forceinline__ uint4 pack(const Accumulator *x) {
	u32 w[4] = {0, 0, 0, 0};
#pragma unroll
	for (u32 i = 0; i < ELEMENTS; i++) {
#if WEFT_TYPE == TYPE_BF16
		if (i % 2 == 0) w[i / 2] = to_bf16x2(x[i], x[i + 1]);
#elif WEFT_TYPE == TYPE_F16
		if (i % 2 == 0) w[i / 2] = to_f16x2(x[i], x[i + 1]);
#elif WEFT_TYPE == TYPE_F32
		w[i] = x[i] != x[i] ? 0x7FFFFFFFu : bits(x[i]);
#elif WEFT_TYPE == TYPE_F64
		u64 b = x[i] != x[i] ? 0x7FFFFFFFFFFFFFFFull : bits64(x[i]);
		w[2 * i] = (u32)b, w[2 * i + 1] = (u32)(b >> 32);
#elif WEFT_TYPE == TYPE_I64 || WEFT_TYPE == TYPE_U64
		w[2 * i] = (u32)x[i], w[2 * i + 1] = (u32)((u64)x[i] >> 32);
#elif WEFT_TYPE == TYPE_E4M3
		if (i % 2 == 0) w[i / 4] |= (u32)to_e4m3x2(x[i], x[i + 1]) << i % 4 * 8;
#elif WEFT_TYPE == TYPE_E5M2
		if (i % 2 == 0) w[i / 4] |= (u32)to_e5m2x2(x[i], x[i + 1]) << i % 4 * 8;
#else
		constexpr u32 MASK = ELEMENT_BYTES == 4 ? ~0u : (1u << 8 * (ELEMENT_BYTES % 4)) - 1;
		w[i * ELEMENT_BYTES / 4] |= ((u32)x[i] & MASK) << i * ELEMENT_BYTES % 4 * 8;
#endif
	}
	return make_uint4(w[0], w[1], w[2], w[3]);
}

// ---- The fold.

#if WEFT_TYPE == TYPE_I64 || WEFT_TYPE == TYPE_U64

// Carry is the upper half of a sum of 128 bits, of which an Accumulator is the lower.
struct Carry {
	u64 high[ELEMENTS];

	__device__ __forceinline__ static u64 extend(Accumulator x) {
		return WEFT_TYPE == TYPE_I64 && (long long)x < 0 ? ~0ull : 0;
	}
	__device__ __forceinline__ void start(const Accumulator *x) {
#pragma unroll
		for (u32 i = 0; i < ELEMENTS; i++) high[i] = extend(x[i]);
	}
	// take is told the sums before and after.
	__device__ __forceinline__ void take(u32 i, Accumulator x, Accumulator sum) {
		high[i] += extend(x) + ((u64)sum < (u64)x);
	}
	// quotient divides the magnitude by n, 32 bits at a time.
	__device__ __forceinline__ Accumulator quotient(u32 i, Accumulator sum, u32 n) const {
		u64 low = (u64)sum, up = high[i];
		bool negative = WEFT_TYPE == TYPE_I64 && (long long)up < 0;
		if (negative) {
			low = ~low + 1;
			up = ~up + (low == 0);
		}
		u64 rest = up % n; // a quotient of 64 bits has no more: |sum| is less than n * 2^64
		rest = rest << 32 | low >> 32;
		u64 q = rest / n << 32;
		rest = rest % n << 32 | (u32)low;
		q += rest / n;
		return (Accumulator)(negative ? ~q + 1 : q);
	}
};

#else

struct Carry {
	__device__ __forceinline__ void start(const Accumulator *) {}
	__device__ __forceinline__ void take(u32, Accumulator, Accumulator) {}
	__device__ __forceinline__ Accumulator quotient(u32, Accumulator sum, u32 n) const { return over(sum, n); }
};

#endif

// Fold is a thread's part of a reduction. start takes the first row, take the rows after it, and
// result gives the result. What lies beyond the elements of a last vector is folded, too, and means
// nothing.
struct Fold {
	Accumulator x[ELEMENTS];
	Carry carry;
	u32 op, ranks;
	Accumulator scalar;

	__device__ __forceinline__ Fold() {}
	// ranks take part: an average divides by them.
	__device__ __forceinline__ Fold(const How &how, u32 ranks) : op(how.op), ranks(ranks) {
		scalar = from_scalar(how.at != nullptr ? *how.at : how.scalar);
	}

	// clear lets the compiler forget what was there: of a Fold that starts in some turn of a loop it would keep that.
	__device__ __forceinline__ void clear() {
#pragma unroll
		for (u32 i = 0; i < ELEMENTS; i++) x[i] = 0;
		carry.start(x);
	}

	__device__ __forceinline__ void start(uint4 v) {
		unpack(x, v);
		if (op == PRE_MUL_SUM) {
#pragma unroll
			for (u32 i = 0; i < ELEMENTS; i++) x[i] = times_plus(scalar, x[i], (Accumulator)0);
		}
		carry.start(x);
	}

	__device__ __forceinline__ void take(uint4 v) {
		if (op == SUM || op == AVG) return add(v);
		Accumulator y[ELEMENTS];
		unpack(y, v);
		if (op == PROD) {
#pragma unroll
			for (u32 i = 0; i < ELEMENTS; i++) x[i] = times(x[i], y[i]);
		} else if (op == MIN) {
#pragma unroll
			for (u32 i = 0; i < ELEMENTS; i++) x[i] = lesser(x[i], y[i]);
		} else if (op == MAX) {
#pragma unroll
			for (u32 i = 0; i < ELEMENTS; i++) x[i] = greater(x[i], y[i]);
		} else {
#pragma unroll
			for (u32 i = 0; i < ELEMENTS; i++) x[i] = times_plus(scalar, y[i], x[i]);
		}
	}

	// rows takes a row of every rank. Sums are the common case, whose instructions follow each other.
	template <u32 N> __device__ __forceinline__ void rows(const uint4 (&v)[N]) {
		start(v[0]);
		if (op == SUM || op == AVG) {
#pragma unroll
			for (u32 r = 1; r < N; r++) add(v[r]);
			return;
		}
#pragma unroll
		for (u32 r = 1; r < N; r++) take(v[r]);
	}

	__device__ __forceinline__ void add(uint4 v) {
		Accumulator y[ELEMENTS];
		unpack(y, v);
#pragma unroll
		for (u32 i = 0; i < ELEMENTS; i++) {
			x[i] = WEFT_TYPE == TYPE_BOOL ? greater(x[i], y[i]) : plus(x[i], y[i]);
			carry.take(i, y[i], x[i]);
		}
	}

	// sum is rows of a reduction that is a sum, and its result.
	template <u32 N> __device__ __forceinline__ static uint4 sum(const uint4 (&v)[N]) {
		Fold f;
		unpack(f.x, v[0]);
		f.carry.start(f.x);
#pragma unroll
		for (u32 r = 1; r < N; r++) f.add(v[r]);
		return pack(f.x);
	}

	__device__ __forceinline__ uint4 result() {
		if (op == AVG) {
#pragma unroll
			for (u32 i = 0; i < ELEMENTS; i++) x[i] = carry.quotient(i, x[i], ranks);
		}
		return pack(x);
	}
};

} // namespace weft

// Operations of which threads have many vectors, or vectors that are not whole.
//
//	vectors.cuh     a thread's vectors: plain, or as packets, which packets.cuh has
//	copies.cuh      copies of pairs, and of packets that come
//	folds.cuh       folds
//	one_vector.cuh  both, for operations of which a thread has one vector at most
#pragma once
#include "folds.cuh"

namespace weft {

namespace plan {

// Many runs such operations. Where a plan has no packets folds have the registers that packets take.
template <bool PACKETS> struct Many : Folds {
	// run moves the bytes [from, to) of each operand of an operation, whose head is at code. False: a wait has ended in
	// vain.
	template <bool WHOLE> __device__ __forceinline__ bool run(const uint4 *code, const Head &h, const Data &d, u64 from,
															  u64 to) const {
		u32 op = h.reduction();
		if (h.kind() == PAIRS || !PACKETS && d.sources == 1) {
			if (PACKETS && h.has(SEND)) {
				pairs<WHOLE, true>(d, from, to);
			} else {
				pairs<WHOLE, false>(d, from, to);
			}
			return true;
		}
		if (!PACKETS) {
			if (op == SUM) {
				fold_plain<WHOLE>(d, from, to, SUM);
			} else if (op == MIN) {
				fold_plain<WHOLE>(d, from, to, MIN);
			} else {
				fold_plain<WHOLE>(d, from, to, MAX);
			}
			return true;
		}
		bool early = h.has(EARLY), receives = h.kind() == RECEIVE;
#pragma unroll 1
		for (u64 i = from + me * 16; i < to;) {
			if (receives) {
				i = receive_some<WHOLE>(d, i, to);
			} else if (op == SUM) {
				i = fold_some<WHOLE>(d, i, to, SUM, early);
			} else if (op == MIN) {
				i = fold_some<WHOLE>(d, i, to, MIN, early);
			} else {
				i = fold_some<WHOLE>(d, i, to, MAX, early);
			}
			if (i < to && !await(code, h, d, i, words(to - i))) return false;
		}
		return true;
	}
};

// move_many runs an operation of which threads have many vectors, or vectors that are not WHOLE. False: a wait has
// ended in vain. It is a function of its own, so that it has registers of its own.
template <bool PACKETS, bool WHOLE>
__device__ __noinline__ bool move_many(const Plan &a, const uint4 *code, const u64 *operands, u64 epoch, u32 flag,
									   u64 from, u64 to) {
	Many<PACKETS> m = {a, operands, epoch, flag, threadIdx.x};
	return m.template run<WHOLE>(code, *(const Head *)code, *(const Data *)(code + 1), from, to);
}

} // namespace plan
} // namespace weft
